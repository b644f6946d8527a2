"""Check, dedupe and sort the ids of many tables by owner, in one pass and without sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit
from gradmesh.engine.kernels.hashing import spread

_BUCKET_SHIFT = np.uint64(52)


@jit
def _route(
    ids: Any,
    starts: Any,
    bounds: Any,
    bucket_owners: Any,
    groups: Any,
    order: Any,
    slots: Any,
    scratch: Any,
    inverse: Any,
    distinct: Any,
    layout: Any,
    totals: Any,
) -> Any:
    """Fill inverse, distinct, layout and totals; return how many distinct ids there are.

    A result below 0 is -1 - the position of an id outside its table.
    """
    tables = groups.shape[0]
    begins, counts = layout[0], layout[1]
    # With one owner and one matrix, order of first appearance is the final order.
    alone = scratch.shape[0] == 0
    unique = distinct if alone else scratch[0]
    found = 0
    for table in range(tables):
        begin, end = starts[table], starts[table + 1]
        first, last = bounds[0, table], bounds[1, table]
        size = 16
        # A quarter full, so that most searches end at the first slot.
        while size < 4 * (end - begin):
            size *= 2
        mask = np.uint64(size - 1)
        slots[:size] = -1
        before = found
        for i in range(begin, end):
            key = ids[i]
            if key < first or key > last:
                return -1 - i
            mixed = spread(key)
            h = mixed & mask
            while slots[h] >= 0 and unique[slots[h]] != key:
                h = (h + np.uint64(1)) & mask
            if slots[h] < 0:
                slots[h] = found
                unique[found] = key
                if not alone:
                    owner = bucket_owners[mixed >> _BUCKET_SHIFT]
                    scratch[1, found] = owner
                    # Its number among those of the same owner and table.
                    scratch[2, found] = counts[owner, table]
                    counts[owner, table] += 1
                found += 1
            inverse[i] = slots[h]
        if alone:
            begins[0, table] = before
            counts[0, table] = found - before
    if alone:
        totals[0] = found
        return found
    owners, positions = scratch[1], scratch[2]
    first = 0
    while first < tables:
        group = groups[order[first]]
        last = first
        while last < tables and groups[order[last]] == group:
            last += 1
        at = 0
        for owner in range(begins.shape[0]):
            for k in range(first, last):
                begins[owner, order[k]] = at
                at += counts[owner, order[k]]
        totals[group] = at
        first = last
    k = 0
    for table in range(tables):
        # Where the matrix of the table's group begins among all distinct ids.
        before = 0
        for group in range(groups[table]):
            before += totals[group]
        for i in range(starts[table], starts[table + 1]):
            if inverse[i] == k:  # the first of its kind
                positions[k] += begins[owners[k], table]
                distinct[before + positions[k]] = unique[k]
                k += 1
            inverse[i] = positions[inverse[i]]
    return found


def route_ids(
    ids: Any,
    starts: Any,
    bounds: Any,
    bucket_owners: Any,
    owner_count: int,
    groups: Any,
    order: Any,
    group_count: int,
) -> tuple[int, Any, Any, Any, Any]:
    """Return the distinct ids of several tables, those of one owner side by side.

    Args:
        ids: int64 [n], the ids of the first table, then those of the second, and so on.
        starts: int64 [tables + 1], where the ids of each table begin.
        bounds: int64 [2, tables], the least and the greatest id of each table.
        bucket_owners: int32 [4096], the owner of each bucket; a bucket is the upper 12 bits of
            the mixed id.
        owner_count: How many owners there are.
        groups: int64 [tables], numbers from 0 on without a gap; tables of a group are adjacent.
        order: int64 [tables], the tables by group.
        group_count: How many groups there are.

    Returns:
        -1, or the position of the first id that is outside its table; the rest is undefined then;
        distinct, int64 [m], by group, then owner, then table, then first appearance;
        inverse, int64 [n], the position of each id among those of its group;
        layout, int64 [2, owners, tables], where the distinct ids of each owner and table begin
        among those of their group, and how many they are;
        totals, int64 [groups], how many there are in each group.
    """
    tables, count = len(groups), len(ids)
    # Sized for the case that one table has all ids.
    slots = np.empty(1 << max(4, (4 * count - 1).bit_length()), np.int32)
    alone = owner_count == 1 and group_count == 1
    scratch = np.empty((0 if alone else 3, count), np.int64)
    inverse = np.empty(count, np.int64)
    distinct = np.empty(count, np.int64)
    layout = np.zeros((2, owner_count, tables), np.int64)
    totals = np.zeros(group_count, np.int64)
    found = _route(
        ids,
        starts,
        bounds,
        bucket_owners,
        groups,
        order,
        slots,
        scratch,
        inverse,
        distinct,
        layout,
        totals,
    )
    if found < 0:
        return -1 - found, distinct, inverse, layout, totals
    return -1, distinct[:found], inverse, layout, totals


@jit
def _route_one(ids: Any, first: Any, last: Any, slots: Any, inverse: Any, distinct: Any) -> Any:
    """Route as `_route` for one table, one owner and one matrix."""
    mask = np.uint64(slots.shape[0] - 1)
    slots[:] = -1
    found = 0
    for i in range(ids.shape[0]):
        key = ids[i]
        if key < first or key > last:
            return -1 - i
        h = spread(key) & mask
        while slots[h] >= 0 and distinct[slots[h]] != key:
            h = (h + np.uint64(1)) & mask
        if slots[h] < 0:
            slots[h] = found
            distinct[found] = key
            found += 1
        inverse[i] = slots[h]
    return found


def route_one(ids: Any, first: int, last: int) -> tuple[int, Any, Any]:
    """Return the distinct ids of one table whose rows have one owner.

    Args:
        ids: int64 [n].
        first: The least id of the table.
        last: The greatest.

    Returns:
        -1, or the position of the first id that is outside the table; the rest is undefined then;
        distinct, int64 [m], in order of first appearance;
        inverse, int64 [n], the position of each id among them.
    """
    count = len(ids)
    if count == 1:
        wrong = -1 if first <= ids.item(0) <= last else 0
        return wrong, ids.copy(), np.zeros(1, np.int64)
    slots = np.empty(1 << max(4, (4 * count - 1).bit_length()), np.int32)
    inverse = np.empty(count, np.int64)
    distinct = np.empty(count, np.int64)
    found = _route_one(ids, first, last, slots, inverse, distinct)
    if found < 0:
        return -1 - found, distinct, inverse
    return -1, distinct if found == count else distinct[:found], inverse
