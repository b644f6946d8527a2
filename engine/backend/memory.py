"""Memory of big arrays: the allocator's settings; pinned buffers and streams for copies to a GPU.

On the CPU pinned buffers and streams do nothing special, so code that uses them runs everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradmesh.engine.backend.array import Array, Device
from gradmesh.engine.backend.cuda import cuda_module, is_available, pinned_module

_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3


def keep_freed_pages() -> bool:
    """Make the C allocator keep freed pages, for processes that make big arrays every step.

    Returns:
        Whether the allocator took the settings; False where it is not glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # In this order: setting any of them switches off glibc's own adjustment of the others.
    settings = ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
    taken = [bool(mallopt(key, value)) for key, value in settings]
    return all(taken)


def empty_pinned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return page-locked host memory for copies to a GPU; plain memory without a GPU."""
    if not is_available():
        return np.empty(shape, dtype=dtype)
    return pinned_module().empty_pinned(shape, dtype=dtype)


@contextlib.contextmanager
def stream(device: Device) -> Iterator[Any]:
    """Run the block's work on a stream of its own; yields the stream, None on the CPU.

    Leaving the block does not wait: call `synchronize`, or wait for an event of the stream.
    """
    if device.kind == "cpu":
        yield None
        return
    cupy = cuda_module()
    with cupy.cuda.Device(device.index), cupy.cuda.Stream(non_blocking=True) as made:
        yield made


def synchronize(device: Device) -> None:
    """Wait until the device has done all work given to it."""
    if device.kind != "cpu":
        cuda_module().cuda.Device(device.index).synchronize()


def copy_rows(rows: Array, device: Device, pinned: Array) -> Array:
    """Copy host rows to a device through a pinned buffer, without waiting for the copy.

    Args:
        rows: [n, dim] in host memory.
        device: Where they go.
        pinned: From `empty_pinned`, of the rows' dtype and at least as long; it must stay unchanged
            until the copy is done.

    Returns:
        The rows on the device; on the CPU the part of the pinned buffer that holds them.
    """
    part = pinned[: len(rows)]
    part[...] = rows
    if device.kind == "cpu":
        return part
    cupy = cuda_module()
    with cupy.cuda.Device(device.index):
        out = cupy.empty(part.shape, dtype=part.dtype)
        out.set(part)
    return out
