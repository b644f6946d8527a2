"""Dedupe the ids of many tables and sort them by owner, in one pass and without a sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit
from gradmesh.engine.kernels.unique import spread

_BUCKET_SHIFT = np.uint64(52)


@jit
def _dedupe(
    ids: Any,
    starts: Any,
    bucket_owners: Any,
    slots: Any,
    unique: Any,
    inverse: Any,
    owners: Any,
    ends: Any,
    counts: Any,
) -> Any:
    """Number the distinct ids of each table and count them by owner; return how many."""
    found = 0
    for table in range(starts.shape[0] - 1):
        begin, end = starts[table], starts[table + 1]
        size = 16
        while size < 2 * (end - begin):
            size *= 2
        mask = np.uint64(size - 1)
        slots[:size] = -1
        for i in range(begin, end):
            key = ids[i]
            mixed = spread(key)
            h = mixed & mask
            while slots[h] >= 0 and unique[slots[h]] != key:
                h = (h + np.uint64(1)) & mask
            if slots[h] < 0:
                slots[h] = found
                unique[found] = key
                owner = bucket_owners[mixed >> _BUCKET_SHIFT]
                owners[found] = owner
                counts[owner, table] += 1
                found += 1
            inverse[i] = slots[h]
        ends[table] = found
    return found


@jit
def _place(unique: Any, owners: Any, ends: Any, offsets: Any, placed: Any, places: Any) -> None:
    """Put the distinct ids where the offsets of their (owner, table) say, in order."""
    k = 0
    for table in range(ends.shape[0]):
        while k < ends[table]:
            place = offsets[owners[k], table]
            offsets[owners[k], table] = place + 1
            placed[place] = unique[k]
            places[k] = place
            k += 1


@jit
def _follow(inverse: Any, places: Any) -> None:
    for i in range(inverse.shape[0]):
        inverse[i] = places[inverse[i]]


@jit
def _outside(ids: Any, starts: Any, firsts: Any, lasts: Any) -> Any:
    for table in range(firsts.shape[0]):
        first, last = firsts[table], lasts[table]
        for i in range(starts[table], starts[table + 1]):
            if ids[i] < first or ids[i] > last:
                return i
    return -1


def first_outside(ids: Any, starts: Any, firsts: Any, lasts: Any) -> int:
    """Return the place of the first id that none of its table's rows has, or -1.

    Args:
        ids: int64 [n], table after table.
        starts: int64 [tables + 1], where the ids of each table begin.
        firsts: int64 [tables], the least id of each table.
        lasts: int64 [tables], the greatest.
    """
    return int(_outside(ids, starts, firsts, lasts))


def route_ids(
    ids: Any, starts: Any, bucket_owners: Any, owner_count: int, groups: Any
) -> tuple[Any, Any, Any]:
    """Return the distinct ids of several tables, those of one owner side by side.

    Args:
        ids: int64 [n], the ids of the first table, then those of the second, and so on.
        starts: int64 [tables + 1], where the ids of each table begin.
        bucket_owners: int32 [4096], the owner of each bucket; a bucket is the upper 12 bits of
            the mixed id.
        owner_count: How many owners there are.
        groups: int64 [tables], a number from 0 for each table; tables of a group stand together.

    Returns:
        distinct, int64 [m], by group, then owner, then table, then first appearance;
        inverse, int64 [n], where each id stands among them;
        layout, int64 [2, owners, tables], where the distinct ids of each owner and table begin,
        and how many they are.
    """
    tables, total = len(starts) - 1, len(ids)
    longest = int(np.max(starts[1:] - starts[:-1], initial=8))
    slots = np.empty(1 << max(4, (2 * longest - 1).bit_length()), np.int32)
    unique, inverse, places = (np.empty(total, np.int64) for _ in range(3))
    owners = np.empty(total, np.int32)
    ends = np.empty(tables, np.int64)
    layout = np.zeros((2, owner_count, tables), np.int64)
    found = _dedupe(ids, starts, bucket_owners, slots, unique, inverse, owners, ends, layout[1])
    order = np.argsort(groups, kind="stable")
    at = 0
    for group in np.unique(groups):
        members = order[groups[order] == group]
        sizes = layout[1][:, members]
        begins = np.cumsum(sizes.reshape(-1)) - sizes.reshape(-1) + at
        layout[0][:, members] = begins.reshape(sizes.shape)
        at += int(sizes.sum())
    distinct = np.empty(found, np.int64)
    _place(unique, owners, ends, layout[0].copy(), distinct, places)
    _follow(inverse, places)
    return distinct, inverse, layout
