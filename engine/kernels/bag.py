"""Pooling of rows by bag, and its gradient summed per distinct row without an [n, dim] array."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit
from gradmesh.engine.kernels.rows import check_index


@jit
def _sum(out: Any, table: Any, ids: Any, starts: Any) -> None:
    for b in range(out.shape[0]):
        i, end = starts[b], starts[b + 1]
        # Four rows a turn save loads and stores of the sum; the order of additions is the same.
        while i + 4 <= end:
            p, q = np.uint64(ids[i]), np.uint64(ids[i + 1])
            r, s = np.uint64(ids[i + 2]), np.uint64(ids[i + 3])
            for j in range(out.shape[1]):
                out[b, j] = (((out[b, j] + table[p, j]) + table[q, j]) + table[r, j]) + table[s, j]
            i += 4
        while i < end:
            p = np.uint64(ids[i])
            for j in range(out.shape[1]):
                out[b, j] += table[p, j]
            i += 1


@jit
def _scaled_sum(out: Any, table: Any, ids: Any, starts: Any, scales: Any) -> None:
    for b in range(out.shape[0]):
        for i in range(starts[b], starts[b + 1]):
            row, scale = np.uint64(ids[i]), scales[i]
            for j in range(out.shape[1]):
                out[b, j] += scale * table[row, j]


@jit
def _max(out: Any, winner: Any, table: Any, ids: Any, starts: Any, skip: Any) -> None:
    for b in range(out.shape[0]):
        for i in range(starts[b], starts[b + 1]):
            if ids[i] == skip:
                continue
            row = table[ids[i]]
            for j in range(out.shape[1]):
                if winner[b, j] < 0 or row[j] > out[b, j]:
                    out[b, j] = row[j]
                    winner[b, j] = i


@jit
def _sum_back(out: Any, inverse: Any, grad: Any, starts: Any, scales: Any, has_scales: Any) -> None:
    for b in range(grad.shape[0]):
        given = grad[b]
        for i in range(starts[b], starts[b + 1]):
            target = out[inverse[i]]
            if has_scales:
                scale = scales[i]
                for j in range(given.shape[0]):
                    target[j] += scale * given[j]
            else:
                for j in range(given.shape[0]):
                    target[j] += given[j]


@jit
def _max_back(out: Any, inverse: Any, grad: Any, winner: Any) -> None:
    for b in range(grad.shape[0]):
        for j in range(grad.shape[1]):
            if winner[b, j] >= 0:
                out[inverse[winner[b, j]], j] += grad[b, j]


@jit
def _weights_back(out: Any, table: Any, ids: Any, grad: Any, starts: Any) -> None:
    for b in range(grad.shape[0]):
        for i in range(starts[b], starts[b + 1]):
            total = out.dtype.type(0)
            for j in range(grad.shape[1]):
                total += table[ids[i], j] * grad[b, j]
            out[i] = total


@jit
def _interleave(starts: Any, lengths: Any, members: Any, out: Any, begins: Any) -> Any:
    at = bag = 0
    for sample in range(starts.shape[1]):
        for table in members:
            first = starts[table, sample]
            for i in range(first, first + lengths[table, sample]):
                out[at] = i
                at += 1
            bag += 1
            begins[bag] = at
    return at


def interleave(starts: Any, lengths: Any, members: Any) -> tuple[Any, Any]:
    """Return the positions of some tables' bags, sample by sample instead of table by table.

    Args:
        starts: int64 [tables, batch], where each bag begins.
        lengths: int64 [tables, batch].
        members: int64 [m], which tables.

    Returns:
        positions, int64 [n], and where each bag begins among them, int64 [batch * m + 1].
    """
    positions = np.empty(int(lengths.sum()), np.int64)
    begins = np.zeros(starts.shape[1] * len(members) + 1, np.int64)
    count = _interleave(starts, lengths, members, positions, begins)
    return positions[:count], begins


def bag_sum(table: Any, ids: Any, starts: Any, scales: Any = None) -> Any:
    """Return the sum of the rows of each bag.

    Args:
        table: [m, dim].
        ids: int64 [n], each in [0, m).
        starts: int64 [bags + 1], where each bag begins among the ids and the last one ends.
        scales: [n], a factor per id, or None for 1.

    Returns:
        [bags, dim], summed in the order of the ids.

    Raises:
        IndexError: If an id lies outside the table.
    """
    check_index(ids, table.shape[0])
    out = np.zeros((len(starts) - 1, table.shape[1]), dtype=table.dtype)
    if scales is None:
        _sum(out, table, ids, starts)
    else:
        _scaled_sum(out, table, ids, starts, scales)
    return out


def bag_max(table: Any, ids: Any, starts: Any, skip: int = -1) -> tuple[Any, Any]:
    """Return the largest element of each column of each bag, and which id it came from.

    An empty bag gives 0 and -1; ids equal to `skip` do not take part.
    """
    check_index(ids, table.shape[0])
    out = np.zeros((len(starts) - 1, table.shape[1]), dtype=table.dtype)
    winner = np.full(out.shape, -1, dtype=np.int64)
    _max(out, winner, table, ids, starts, skip)
    return out, winner


def bag_sum_backward(inverse: Any, count: int, grad: Any, starts: Any, scales: Any = None) -> Any:
    """Return the gradient of `bag_sum` per distinct id, [count, dim]."""
    out = np.zeros((count, grad.shape[1]), dtype=grad.dtype)
    _sum_back(out, inverse, grad, starts, _scales(grad, scales), scales is not None)
    return out


def bag_max_backward(inverse: Any, count: int, grad: Any, winner: Any) -> Any:
    """Return the gradient of `bag_max` per distinct id, [count, dim]."""
    out = np.zeros((count, grad.shape[1]), dtype=grad.dtype)
    _max_back(out, inverse, grad, winner)
    return out


def bag_weights_backward(table: Any, ids: Any, grad: Any, starts: Any) -> Any:
    """Return the gradient of `bag_sum` for its scales, [n]."""
    out = np.empty(len(ids), dtype=grad.dtype)
    _weights_back(out, table, ids, grad, starts)
    return out


def _scales(like: Any, scales: Any) -> Any:
    return np.empty(0, dtype=like.dtype) if scales is None else scales
