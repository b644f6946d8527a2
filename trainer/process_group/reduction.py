"""Reduce equal-length contributions in rank order, and split arrays into slices. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp

_COMBINE: dict[ReduceOp, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


_HALF_BYTES = 2


def accumulation_dtype(dtype: Any, op: ReduceOp = "avg") -> Any:
    """Return the dtype in which partial results are accumulated.

    Averages of two-byte floats are accumulated in float32 and rounded once: a sum of values near
    the limit of float16 would overflow before it is divided.
    """
    is_half_mean = op == "avg" and dtype.itemsize == _HALF_BYTES
    return np.dtype(np.float32) if is_half_mean else dtype


def slices(count: int, size: int) -> list[slice]:
    """Cut `count` elements into `size` slices that differ by at most one element."""
    edges = [rank * count // size for rank in range(size + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def reduce_in_order(contributions: Sequence[AnyArray], op: ReduceOp, out: AnyArray) -> None:
    """Combine contributions from first to last into `out`.

    Args:
        contributions: One array for each rank, in rank order. The first one is used as
            the accumulator and is overwritten unless it is `out`.
        op: How to combine.
        out: Receives the result; may be one of the contributions.
    """
    if accumulation_dtype(out.dtype, op) != out.dtype:
        out[...] = _mean_accumulated(contributions, accumulation_dtype(out.dtype, op))
        return
    combine = _COMBINE[op]
    total, *rest = contributions
    for contribution in rest[:-1]:
        combine(total, contribution, out=total)
    if rest:
        combine(total, rest[-1], out=out)
    elif total is not out:
        out[...] = total
    if op == "avg":
        np.divide(out, out.dtype.type(len(contributions)), out=out)


def combine_in_order(contributions: Sequence[AnyArray], op: ReduceOp, out: AnyArray) -> None:
    """Combine contributions from first to last into `out`, which is not one of them.

    For "avg" this is the sum, in the dtype of `out`: the rank with the complete sum divides.
    """
    first, *rest = contributions
    if not rest:
        out[...] = first
        return
    combine = _COMBINE[op]
    combine(first, rest[0], out=out, dtype=out.dtype)
    for contribution in rest[1:]:
        combine(out, contribution, out=out)


def _mean_accumulated(contributions: Sequence[AnyArray], dtype: np.dtype[np.generic]) -> AnyArray:
    """Return the average of contributions in rank order, in a wider dtype."""
    total = contributions[0].astype(dtype)
    for contribution in contributions[1:]:
        np.add(total, contribution, out=total)
    mean: AnyArray = np.divide(total, total.dtype.type(len(contributions)), out=total)
    return mean
