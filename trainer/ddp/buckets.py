"""Which gradients travel together, and where each lies. Pure: no group, no arrays.

The first layout follows from the parameters alone, so that a rank that comes back computes the
same. A second one, made once, follows the order in which rank 0 saw gradients arrive.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

MIB = 1 << 20
FIRST_CAP_BYTES = 1 * MIB
CAP_BYTES = 25 * MIB
NO_LIMIT = sys.maxsize


@final
@dataclass(frozen=True, slots=True)
class GradientSpec:
    """What the layout has to know of one parameter's gradient."""

    name: str
    """The parameter's dotted name."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: np.dtype[Any]
    """Type in which it lies in its bucket."""
    device: str = "cpu"
    """Where it lives."""
    is_sparse: bool = False
    """Whether rows are expected instead of a whole array."""
    travels_as: np.dtype[Any] | None = None
    """Type to which it is rounded on its way; None for that of the bucket."""

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self.size * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class Assignment:
    """The parameters of one bucket."""

    indices: tuple[int, ...]
    """Their places in the list of parameters, in the order they lie in the bucket."""
    limit_bytes: int
    """Size at which the bucket was closed; 0 for one that holds a sparse gradient."""


@final
@dataclass(frozen=True, slots=True)
class BucketCaps:
    """How big buckets grow: a bucket closes as soon as it reaches its cap.

    Raises:
        ValueError: If a cap is negative, or the list is empty.
    """

    cap_mb: float | None = None
    """Cap in MiB of all buckets, 0 for one a parameter; None means 25 with a first bucket of 1."""
    caps_mb: tuple[float, ...] | None = None
    """Caps of the first, second, ... bucket; the last one holds for all further ones."""

    def __post_init__(self) -> None:
        if self.caps_mb is not None and not self.caps_mb:
            raise ValueError("bucket_cap_mb_list is empty; give one cap or more, or None")
        for cap in (self.cap_mb, *(self.caps_mb or ())):
            if cap is not None and cap < 0:
                raise ValueError(f"a bucket cap of {cap} MiB; caps are 0 or more")

    @property
    def cap_bytes(self) -> int:
        """The greatest cap."""
        if self.caps_mb is not None:
            return _bytes(max(self.caps_mb))
        return CAP_BYTES if self.cap_mb is None else _bytes(self.cap_mb)

    @property
    def limits(self) -> list[int]:
        """Caps in bytes of one bucket after the other, the last one for all further ones."""
        if self.caps_mb is not None:
            return [_bytes(cap) for cap in self.caps_mb]
        return [FIRST_CAP_BYTES, CAP_BYTES] if self.cap_mb is None else [self.cap_bytes]

    def initial_limits(self, *, static_graph: bool, find_unused: bool) -> list[int]:
        """Return the caps of the first layout.

        A layout that will be rebuilt begins with one bucket for each dtype and device: nothing is
        known yet about the order of gradients.
        """
        if self.caps_mb is not None or (find_unused and not static_graph):
            return self.limits
        return [NO_LIMIT]


def _bytes(mebibytes: float) -> int:
    return int(mebibytes * MIB)


def assign(
    specs: Sequence[GradientSpec], limits: Sequence[int], order: Sequence[int] | None = None
) -> list[Assignment]:
    """Distribute parameters over buckets, one dtype and device in each.

    Each dtype and device goes through the limits on its own and stays on the last; a bucket may
    pass its limit by its last parameter. A sparse gradient has a bucket to itself.

    Args:
        specs: The parameters.
        limits: Sizes in bytes at which buckets close.
        order: Parameters in the order to walk; None walks as given and sorts buckets by their
            smallest index.

    Raises:
        ValueError: If there are no limits.
    """
    if not limits:
        raise ValueError("buckets need at least one size limit")
    done: list[Assignment] = []
    open_: dict[tuple[Any, str], list[int]] = {}
    sizes: dict[tuple[Any, str], int] = {}
    steps: dict[tuple[Any, str], int] = {}
    for index in range(len(specs)) if order is None else order:
        spec = specs[index]
        if spec.is_sparse:
            done.append(Assignment((index,), 0))
            continue
        key = (spec.dtype, spec.device)
        step = steps.setdefault(key, 0)
        open_.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + spec.nbytes
        if sizes[key] >= limits[step]:
            done.append(Assignment(tuple(open_.pop(key)), limits[step]))
            sizes[key] = 0
            steps[key] = min(step + 1, len(limits) - 1)
    done += [Assignment(tuple(held), limits[steps[key]]) for key, held in open_.items()]
    return done if order is not None else sorted(done, key=lambda bucket: min(bucket.indices))


def offsets(specs: Sequence[GradientSpec]) -> list[int]:
    """Return where each gradient of a bucket begins, and at last how many elements there are."""
    ends = [0]
    for spec in specs:
        ends.append(ends[-1] + spec.size)
    return ends
