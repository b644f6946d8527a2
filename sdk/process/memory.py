"""Tune the allocators for what comes and goes quickly: big buffers, and small objects."""

import ctypes
import gc

# Numbers from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

_MMAP_BYTES = 1 << 30
# Older glibc refuses more than this.
_MMAP_BYTES_OLD = 32 << 20
# mallopt takes a C int, so the trim threshold stays just below 2 GiB.
_TRIM_BYTES = (1 << 31) - 1
_PAD_BYTES = 64 << 20


def keep_big_buffers() -> bool:
    """Make malloc keep freed big buffers instead of returning them to the kernel.

    A reply of 16 MiB otherwise pays page faults on each call, which cost more than the copy.
    Call once, at process start. The price is a higher resident size after a peak.

    Returns:
        Whether the allocator took the settings; False off glibc, where nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    if mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) != 1:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES_OLD)
    trimmed: int = mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    padded: int = mallopt(_M_TOP_PAD, _PAD_BYTES)
    return trimmed == 1 and padded == 1


def spare_what_stays() -> None:
    """Leave everything made so far out of the garbage collector's passes.

    A process has some hundred thousand objects of modules and compiled functions. Small calls make
    objects at such a rate that Python looks through all of them every few seconds, for a tenth of
    a second. Called when a process begins to serve; `gc.unfreeze` takes it back.
    """
    gc.freeze()
