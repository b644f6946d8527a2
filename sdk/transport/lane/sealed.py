"""Memory of another process: what is checked of its descriptor before it is mapped."""

import fcntl
import mmap
import os

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""The seals of memory that is shared: its size never changes, and no seal is added."""


def sealed_size(fd: int) -> int:
    """Return the size of another process's memory, which can no longer shrink.

    Args:
        fd: A descriptor that the process sent; it may be any file.

    Raises:
        ValueError: It is not memory that can be mapped safely.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("what the peer shares is not memory but another file") from None
    # Before the size is read: without the seal the next instruction of the peer could change it,
    # and reading a mapping beyond its file ends this process with SIGBUS.
    if seals & fcntl.F_SEAL_SHRINK == 0:
        raise ValueError("the peer's memory is not sealed: it could be truncated while in use")
    # Huge pages come from a pool that can be empty at the first read: SIGBUS again.
    if os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        raise ValueError("the peer's memory has pages of another size")
    size = os.fstat(fd).st_size
    if size <= 0:
        raise ValueError(f"the peer's memory has {size} bytes")
    return size
