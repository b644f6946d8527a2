"""How the process keeps memory: page faults of fresh big arrays cost more than copying them."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3


def keep_freed_pages() -> bool:
    """Tell the C allocator to keep freed pages, for a process that makes big arrays every step.

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
