"""Which module an array belongs to, and how arrays move between devices."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from gradmesh.engine.backend.cuda import cuda_module
from gradmesh.engine.backend.device import Device, device_of

# numpy.ndarray or cupy.ndarray: the two share an interface but no base class.
Array: TypeAlias = Any


def array_module(array: Array) -> Any:
    """Return numpy or cupy, whichever made the array."""
    if isinstance(array, (np.ndarray, np.generic)):
        return np
    return cuda_module()


def is_plain(array: Array) -> bool:
    """Tell whether compiled kernels can take the array: float32 or float64 in host memory."""
    # The numbers of these two types; comparing dtypes costs several times as much.
    return isinstance(array, np.ndarray) and 11 <= array.dtype.num <= 12


def as_array(value: Any) -> Array:
    """Return the value as an array, wrapping the scalars numpy's reductions give."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    return value


def to_numpy(array: Array) -> Any:
    """Return the array in host memory: itself if it is there, else a copy."""
    if isinstance(array, np.ndarray):
        return array
    return cuda_module().asnumpy(array)


def to_device(array: Array, device: Device) -> Array:
    """Return the array on a device: itself if it is there, else a copy."""
    if device_of(array) == device:
        return array
    if device.kind == "cpu":
        return to_numpy(array)
    cupy = cuda_module()
    with cupy.cuda.Device(device.index):
        return cupy.asarray(array)
