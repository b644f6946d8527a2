"""Sums of rows by index, in order of appearance on every device: they repeat bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array, array_module
from gradmesh.engine.backend.cuda import raw_function

_BODY = """
extern "C" __global__ void segment_sum_NAME(
    const TYPE* rows, const long long* order, const long long* starts, const long long* positions,
    long long segments, long long count, long long dim, TYPE* out)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= segments * dim) return;
    long long segment = at / dim;
    long long column = at % dim;
    long long end = segment + 1 < segments ? starts[segment + 1] : count;
    TYPE total = out[positions[segment] * dim + column];
    // One thread walks one column of one segment: the order of additions is that of the rows.
    for (long long i = starts[segment]; i < end; ++i)
        total += rows[order[i] * dim + column];
    out[positions[segment] * dim + column] = total;
}
"""

SOURCE = "".join(_BODY.replace("TYPE", kind).replace("NAME", kind) for kind in ("float", "double"))
"""CUDA C of all raw kernels; a test compiles it for each architecture."""

_THREADS = 256


def segment_sum(rows: Any, order: Any, starts: Any, positions: Any, out: Any) -> None:
    """Add rows to out, segment by segment, in order.

    Args:
        rows: float32 or float64 [n, dim], contiguous, on the device.
        order: int64 [n], the rows sorted by segment.
        starts: int64 [segments], where each segment begins in `order`.
        positions: int64 [segments], the row of out that each segment is added to; distinct.
        out: [m, dim], changed in place.
    """
    segments, dim = len(positions), rows.shape[1]
    kernel = raw_function(
        SOURCE, "segment_sum_" + ("float" if rows.dtype.char == "f" else "double")
    )
    blocks = -(-segments * dim // _THREADS)
    arguments = (rows, order, starts, positions, segments, len(order), dim, out)
    kernel((max(blocks, 1),), (_THREADS,), arguments)


def scatter_add(out: Array, positions: Array, rows: Array) -> None:
    """Add rows to the rows of out at given positions; repeated positions add up in order.

    Args:
        out: [m, dim], changed in place.
        positions: int [n], each in [0, m).
        rows: [n, dim].
    """
    if isinstance(out, np.ndarray):
        kernels.scatter_add(out, positions, rows)
    else:
        _scatter_add_sorted(out, positions, rows)


def coalesce_rows(ids: Array, rows: Array) -> tuple[Array, Array]:
    """Return distinct ids in order of first appearance and the sum of the rows of each."""
    if isinstance(rows, np.ndarray):
        unique, inverse = kernels.unique_inverse(ids)
        return unique, kernels.coalesce(inverse, rows, len(unique))
    return _coalesce_sorted(ids, rows)


def _scatter_add_sorted(out: Array, positions: Array, rows: Array) -> None:
    """Add on a GPU: atomics would add in any order, a stable sort keeps the order."""
    xp = array_module(out)
    if not len(positions):
        return
    order = xp.argsort(positions, kind="stable").astype("int64", copy=False)
    placed = positions[order]
    starts = xp.flatnonzero(xp.concatenate([xp.ones(1, dtype=bool), placed[1:] != placed[:-1]]))
    first = placed[starts].astype("int64", copy=False)
    given = xp.ascontiguousarray(rows)
    if out.dtype.char in "fd" and out.flags.c_contiguous and rows.dtype == out.dtype:
        segment_sum(given, order, starts, first, out)
        return
    if out.dtype.kind in "iub":
        # Integers add exactly in any order: the sum of a segment is a difference of running sums.
        sums = xp.cumsum(given[order], axis=0, dtype="int64")
        upto = sums[xp.concatenate([starts[1:], xp.asarray([len(positions)])]) - 1]
        upto[1:] -= upto[:-1].copy()
        out[first] += upto.astype(out.dtype)
        return
    # Half precision: sum in float32 and round once, as on the host.
    total = xp.ascontiguousarray(out.astype("float32"))
    segment_sum(given.astype("float32"), order, starts, first, total)
    out[...] = total.astype(out.dtype)


def _coalesce_sorted(ids: Array, rows: Array) -> tuple[Any, Any]:
    xp = array_module(rows)
    unique, first, inverse = xp.unique(ids, return_index=True, return_inverse=True)
    rank = xp.argsort(first)
    position = xp.empty_like(rank)
    position[rank] = xp.arange(len(rank))
    out = xp.zeros((len(unique), *rows.shape[1:]), dtype=rows.dtype)
    _scatter_add_sorted(out, position[inverse.reshape(-1)], rows)
    return unique[rank], out


def bag_pool(
    table: Array, ids: Array, starts: Array, factors: Any, mode: str, padding: int
) -> tuple[Array, Any]:
    """Pool rows by bag where no kernel can; return the result and, for max, the chosen ids."""
    xp = array_module(table)
    lengths = starts[1:] - starts[:-1]
    out = xp.zeros((len(lengths), table.shape[1]), dtype=table.dtype)
    if mode != "max":
        bags = xp.repeat(xp.arange(len(lengths)), lengths.tolist())
        rows = table[ids] if factors is None else table[ids] * factors[:, None]
        scatter_add(out, bags, rows)
        return out, None
    winner = xp.full(out.shape, -1, dtype="int64")
    for position in range(int(lengths.max()) if len(lengths) else 0):
        # One candidate of every bag at a time; bags that are too short read their first row.
        at = xp.where(position < lengths, starts[:-1] + position, 0)
        valid = (position < lengths) & (ids[at] != padding)
        rows = table[ids[at]]
        better = valid[:, None] & ((winner < 0) | (rows > out))
        out = xp.where(better, rows, out)
        winner = xp.where(better, at[:, None], winner)
    return out, winner
