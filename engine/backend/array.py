"""Arrays, the devices that hold them, and copies between devices."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np

from gradmesh.engine.backend.cuda import cuda_module
from gradmesh.engine.errors import DeviceError, ShapeError


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Name a device that holds arrays.

    Args:
        kind: `"cpu"` or `"cuda"`.
        index: Which GPU; always 0 on the CPU.
    """

    kind: str
    index: int = 0

    @property
    def type(self) -> str:
        """Name the kind, under torch's name for it."""
        return self.kind

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"


CPU = Device("cpu")


def as_device(value: str | Device | None) -> Device:
    """Read a device from `"cpu"`, `"cuda"`, `"cuda:1"`; None means the CPU.

    Raises:
        DeviceError: If the name is none of these.
    """
    if value is None:
        return CPU
    if isinstance(value, Device):
        return value
    kind, _, index = value.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise DeviceError(f"no such device: {value!r}; use 'cpu', 'cuda' or 'cuda:<index>'")
    if kind == "cpu":
        return CPU
    return Device(kind, int(index or 0))


def device_of(array: Any) -> Device:
    """Return the device that holds an array."""
    if isinstance(array, (np.ndarray, np.generic)):
        return CPU
    return Device("cuda", int(array.device.id))


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
    """Return whether compiled kernels can take the array: float32 or float64 in host memory."""
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
