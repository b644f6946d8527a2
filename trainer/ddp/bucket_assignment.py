"""Assign gradients to buckets. Pure: no group, no arrays.

The first assignment follows from the parameters alone, so that a rank that rejoins computes the
same one. The second one, made once, follows the order in which gradients arrived on rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True, slots=True)
class GradientSpec:
    """Name, shape, dtype and device of one parameter's gradient."""

    name: str
    """The parameter's dotted name."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: np.dtype[Any]
    """Dtype in the bucket."""
    device: str = "cpu"
    """Device of the parameter."""
    is_sparse: bool = False
    """Whether the gradient consists of rows instead of a whole array."""
    reduce_dtype: np.dtype[Any] | None = None
    """Dtype it is rounded to for the all-reduce; None for that of the bucket."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class BucketAssignment:
    """The parameters of one bucket."""

    indices: tuple[int, ...]
    """Their indices in the list of parameters, in the order of the bucket."""
    limit_bytes: int
    """Size at which the bucket was closed; 0 for one that holds a sparse gradient."""


def assign_buckets(
    specs: Sequence[GradientSpec], limits: Sequence[int], order: Sequence[int] | None = None
) -> list[BucketAssignment]:
    """Distribute parameters over buckets, one dtype and device in each.

    Each dtype and device advances through the limits by itself and stays at the last one; the last
    parameter of a bucket may exceed its limit. A sparse gradient has a bucket to itself.

    Args:
        specs: The parameters.
        limits: Sizes in bytes at which buckets close.
        order: Order in which to visit parameters; None visits them as given and sorts buckets by
            their smallest index.

    Raises:
        ValueError: If there are no limits.
    """
    if not limits:
        raise ValueError("buckets need at least one size limit")
    done: list[BucketAssignment] = []
    open_: dict[tuple[Any, str], list[int]] = {}
    sizes: dict[tuple[Any, str], int] = {}
    steps: dict[tuple[Any, str], int] = {}
    for index in range(len(specs)) if order is None else order:
        spec = specs[index]
        if spec.is_sparse:
            done.append(BucketAssignment((index,), 0))
            continue
        key = (spec.dtype, spec.device)
        step = steps.setdefault(key, 0)
        open_.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + spec.nbytes
        if sizes[key] >= limits[step]:
            done.append(BucketAssignment(tuple(open_.pop(key)), limits[step]))
            sizes[key] = 0
            steps[key] = min(step + 1, len(limits) - 1)
    done += [BucketAssignment(tuple(held), limits[steps[key]]) for key, held in open_.items()]
    return done if order is not None else sorted(done, key=lambda bucket: min(bucket.indices))


def offsets(specs: Sequence[GradientSpec]) -> list[int]:
    """Return the offset of each gradient of a bucket, and last the number of elements."""
    ends = [0]
    for spec in specs:
        ends.append(ends[-1] + spec.size)
    return ends
