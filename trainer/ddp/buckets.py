"""Which gradients travel together, and where each lies. Pure: no group, no arrays.

The layout follows from the parameters alone, so that a rank that comes back computes the same.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter's place in a bucket."""

    name: str
    """The parameter's dotted name."""
    shape: tuple[int, ...]
    """Its shape."""
    offset: int
    """Where its elements begin in the bucket."""

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients of one dtype in one run of memory."""

    dtype: np.dtype[Any]
    """Type of all its gradients."""
    entries: tuple[Entry, ...]
    """Who lies where, without gaps."""

    @property
    def size(self) -> int:
        """How many elements it holds."""
        return sum(entry.size for entry in self.entries)


def lay_out(
    parameters: Iterable[tuple[str, tuple[int, ...], np.dtype[Any]]],
    bucket_bytes: int | None = None,
) -> list[Bucket]:
    """Distribute parameters over buckets, last created first, as backward produces them.

    Args:
        parameters: Name, shape and dtype, in order of creation.
        bucket_bytes: A bucket takes no further parameter that would carry it beyond this; a
            single parameter may be bigger. None puts all of one dtype into one bucket.
    """
    buckets: list[Bucket] = []
    entries: dict[np.dtype[Any], list[Entry]] = {}
    for name, shape, dtype in reversed(list(parameters)):
        held = entries.setdefault(dtype, [])
        used = sum(entry.size for entry in held)
        wanted = used + math.prod(shape)
        if held and bucket_bytes is not None and wanted * dtype.itemsize > bucket_bytes:
            buckets.append(Bucket(dtype, tuple(held)))
            entries[dtype] = held = []
            used = 0
        held.append(Entry(name, shape, used))
    buckets.extend(Bucket(dtype, tuple(held)) for dtype, held in entries.items())
    return buckets


def digest(buckets: Sequence[Bucket]) -> bytes:
    """Return 32 bytes that two ranks share only if their layouts are equal."""
    lines = [
        f"{bucket.dtype} {entry.name} {entry.shape} {entry.offset}"
        for bucket in buckets
        for entry in bucket.entries
    ]
    return hashlib.sha256("\n".join(lines).encode()).digest()
