"""Which module an array belongs to, and how arrays move between devices."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from gradmesh.engine.backend.cuda import cuda_module
from gradmesh.engine.backend.device import Device, device_of
from gradmesh.engine.backend.errors import ShapeError

# numpy.ndarray or cupy.ndarray: the two share an interface but no base class.
Array: TypeAlias = Any


def array_module(array: Array) -> Any:
    """Return numpy or cupy, whichever made the array."""
    if isinstance(array, (np.ndarray, np.generic)):
        return np
    if not hasattr(array, "strides"):
        raise TypeError(f"an op takes a tensor or an array here, not {type(array).__name__}")
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


def view_of(array: Array, shape: Any) -> Array:
    """Return the array's own memory in another shape, for writing to.

    `reshape` copies where memory is not in order, and what is written to the copy is lost.

    Raises:
        ShapeError: If the shape cannot be had without a copy.
    """
    out = array.reshape(shape)
    if array.flags.c_contiguous or not out.size:
        return out
    if not array_module(array).may_share_memory(out, array):
        raise ShapeError(
            f"memory of shape {tuple(array.shape)} and strides {tuple(array.strides)} has no view "
            f"of shape {shape}; make it contiguous first"
        )
    return out


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
