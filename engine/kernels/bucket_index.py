"""Open addressing in many small buckets, so that growth rehashes a bucket and never a table.

The upper 12 bits of an id's hash choose its bucket, the lower 32 its home inside. A bucket is a
region of `entries`, int64 [n, 2]: the id, and (mark << 32 | slot + 1); all zero means empty, which
is what fresh pages hold. `heads`, int64 [buckets, 4], says of each bucket where its region begins,
how many entries fit, how many are used, and its size class; `sizes`, int64 [classes, 2], says of
each class how many entries a region has and where the regions of the class begin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit, prefetch_row
from gradmesh.engine.kernels.hashing import spread

KEEP, LRU, LFU, TTL = 0, 1, 2, 3
"""What the mark of an entry means: nothing, the last use, how many uses, the step of the last."""

BEGIN, CAPACITY, USED, CLASS = 0, 1, 2, 3
"""Columns of `heads`."""

NEXT_SLOT, FREE_SLOTS, SLOT_LIMIT, ROWS, EVICTED, DEAD = 0, 1, 2, 3, 4, 5
"""Places in `counts`: slots ever assigned, slots freed, slots allowed, entries, evictions so far,
regions left behind since `dead` was read."""

DONE, NO_SLOT, NO_CLASS, DEAD_LIST_FULL = 0, 1, 2, 3
"""Why `insert` returned."""

# Ids whose entries are prefetched together.
_BLOCK = 128
_LOW = np.uint64(0xFFFFFFFF)
_MASK = 0xFFFFFFFF
_HALF = np.uint64(32)
_TOP = np.uint64(52)


@inline
def _home(hashed: Any, capacity: Any) -> Any:
    return np.int64(((hashed & _LOW) * np.uint64(capacity)) >> _HALF)


@inline
def _marked(policy: Any, old: Any, now: Any, clocks: Any, bucket: Any) -> Any:
    if policy == LRU:
        clocks[bucket] += 1
        return clocks[bucket] & _MASK
    if policy == LFU:
        return min(old + 1, _MASK)
    if policy == TTL:
        return now & _MASK
    return 0


@jit
def first_foreign(ids: Any, local: Any) -> Any:
    """Return the position of the first id whose bucket is not here (local < 0), or -1."""
    for i in range(ids.shape[0]):
        if local[np.int64(spread(ids[i]) >> _TOP)] < 0:
            return i
    return -1


@inline
def _prefetch_homes(
    ids: Any, begin: Any, end: Any, local: Any, heads: Any, entries: Any, way: Any
) -> None:
    """Store where the search for ids[begin:end] starts, and prefetch these entries.

    A row of `way` says of an id where to look, and where its bucket begins and ends.
    """
    for i in range(begin, end):
        hashed = spread(ids[i])
        bucket = np.int64(local[np.int64(hashed >> _TOP)])
        first, capacity = heads[bucket, BEGIN], heads[bucket, CAPACITY]
        position = first + _home(hashed, capacity)
        way[i - begin, 0], way[i - begin, 1], way[i - begin, 2] = position, first, first + capacity
        prefetch_row(entries, position)
        # Half of the searches continue; they may cross into the next cache line.
        prefetch_row(entries, position + 2)


@inline
def _probe(ids: Any, begin: Any, end: Any, entries: Any, way: Any, left: Any, values: Any) -> None:
    """Move on to the entries of ids[begin:end], or to the empty ones where a search ends.

    The values of these entries go to `values`. Each pass compares all ids that are left: whether an
    entry matches is unpredictable, so no branch depends on it.
    """
    count = 0
    for k in range(end - begin):
        position = np.uint64(way[k, 0])
        value = entries[position, 1]
        values[k] = value
        left[count] = k
        count += 1 - int((entries[position, 0] == ids[begin + k]) | (value == 0))
    while count > 0:
        again = 0
        for m in range(count):
            k = left[m]
            following = way[k, 0] + 1
            following = way[k, 1] if following == way[k, 2] else following
            way[k, 0] = following
            position = np.uint64(following)
            value = entries[position, 1]
            values[k] = value
            left[again] = k
            again += 1 - int((entries[position, 0] == ids[begin + k]) | (value == 0))
        count = again


@inline
def _search(key: Any, position: Any, local: Any, heads: Any, entries: Any) -> Any:
    """Return the position of an id, or the empty one where the search ends."""
    if entries[position, 1] != 0 and entries[position, 0] != key:
        bucket = np.int64(local[np.int64(spread(key) >> _TOP)])
        begin = heads[bucket, BEGIN]
        end = begin + heads[bucket, CAPACITY]
        while entries[position, 1] != 0 and entries[position, 0] != key:
            position += 1
            if position == end:
                position = begin
    return position


@jit
def find(ids: Any, local: Any, heads: Any, entries: Any, oldest: Any, out: Any) -> Any:
    """Put the slot of each id into out, -1 where there is none; return how many are missing.

    Entries whose mark is below `oldest` count as absent.
    """
    way = np.empty((_BLOCK, 3), np.int64)
    left, values = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    missing = 0
    for begin in range(0, ids.shape[0], _BLOCK):
        end = min(begin + _BLOCK, ids.shape[0])
        _prefetch_homes(ids, begin, end, local, heads, entries, way)
        _probe(ids, begin, end, entries, way, left, values)
        for i in range(begin, end):
            value = values[i - begin]
            absent = (value == 0) | (((value >> 32) & _MASK) < oldest)
            out[i] = -1 if absent else (value & _MASK) - 1
            missing += int(absent)
    return missing


@jit
def use(
    ids: Any,
    local: Any,
    heads: Any,
    entries: Any,
    policy: Any,
    now: Any,
    oldest: Any,
    clocks: Any,
    out: Any,
    expired: Any,
) -> Any:
    """Find as `find` does, and mark entries as used; return how many are missing and expired.

    The positions in ids of expired entries are listed, and their marks are left alone.
    """
    way = np.empty((_BLOCK, 3), np.int64)
    left, values = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    missing = 0
    stale = 0
    for begin in range(0, ids.shape[0], _BLOCK):
        end = min(begin + _BLOCK, ids.shape[0])
        _prefetch_homes(ids, begin, end, local, heads, entries, way)
        _probe(ids, begin, end, entries, way, left, values)
        for i in range(begin, end):
            position = way[i - begin, 0]
            # Read again: an id may appear twice, and its first use has marked the entry.
            value = entries[position, 1]
            slot = value & _MASK
            out[i] = slot - 1
            if value == 0:
                missing += 1
                continue
            mark = (value >> 32) & _MASK
            if oldest > 0 and mark < oldest:
                expired[stale] = i
                stale += 1
                continue
            bucket = np.int64(local[np.int64(spread(ids[i]) >> _TOP)])
            entries[position, 1] = (_marked(policy, mark, now, clocks, bucket) << 32) | slot
    return missing, stale


@jit
def _put(entries: Any, begin: Any, capacity: Any, key: Any, value: Any) -> None:
    position = _home(spread(key), capacity)
    while entries[begin + position, 1] != 0:
        position += 1
        if position == capacity:
            position = 0
    entries[begin + position, 0] = key
    entries[begin + position, 1] = value


@jit
def _grow(bucket: Any, heads: Any, entries: Any, sizes: Any) -> bool:
    """Move a bucket to the next size class; False if there is none."""
    grown = heads[bucket, CLASS] + 1
    if grown == sizes.shape[0]:
        return False
    old, count = heads[bucket, BEGIN], heads[bucket, CAPACITY]
    capacity = sizes[grown, 0]
    begin = sizes[grown, 1] + bucket * capacity
    for i in range(old, old + count):
        if entries[i, 1] != 0:
            _put(entries, begin, capacity, entries[i, 0], entries[i, 1])
    heads[bucket, BEGIN], heads[bucket, CAPACITY], heads[bucket, CLASS] = begin, capacity, grown
    return True


@jit
def _order(policy: Any, value: Any, clock: Any, key: Any) -> Any:
    """Return the eviction order of an entry: the least is dropped first; no two are equal."""
    mark = (value >> 32) & _MASK
    if policy == LRU:
        mark = (mark - clock - 1) & _MASK
    return (np.uint64(mark) << _HALF) | (spread(key) & _LOW)


@jit
def evict(
    bucket: Any,
    share: Any,
    policy: Any,
    oldest: Any,
    heads: Any,
    entries: Any,
    clocks: Any,
    counts: Any,
    free: Any,
) -> Any:
    """Drop expired entries of a bucket and, unless share is 0, the first 1/share in eviction order.

    Returns:
        How many were dropped.
    """
    begin, capacity, used = heads[bucket, BEGIN], heads[bucket, CAPACITY], heads[bucket, USED]
    if share == 0:
        stale = 0
        for i in range(begin, begin + capacity):
            if entries[i, 1] != 0 and ((entries[i, 1] >> 32) & _MASK) < oldest:
                stale += 1
        if stale == 0:
            return 0
    orders = np.empty(used, np.uint64)
    kept = np.empty((used, 2), np.int64)
    held = 0
    for i in range(begin, begin + capacity):
        if entries[i, 1] != 0:
            kept[held, 0], kept[held, 1] = entries[i, 0], entries[i, 1]
            orders[held] = _order(policy, entries[i, 1], clocks[bucket], entries[i, 0])
            held += 1
    limit = np.uint64(0)
    if share > 0:
        limit = np.sort(orders)[max(1, used // share) - 1]
    entries[begin : begin + capacity] = 0
    gone = 0
    for i in range(held):
        mark = (kept[i, 1] >> 32) & _MASK
        if (share > 0 and orders[i] <= limit) or mark < oldest:
            free[counts[FREE_SLOTS]] = (kept[i, 1] & _MASK) - 1
            counts[FREE_SLOTS] += 1
            gone += 1
        else:
            _put(entries, begin, capacity, kept[i, 0], kept[i, 1])
    heads[bucket, USED] -= gone
    counts[ROWS] -= gone
    counts[EVICTED] += gone
    return gone


@jit
def insert(
    ids: Any,
    start: Any,
    local: Any,
    heads: Any,
    entries: Any,
    sizes: Any,
    policy: Any,
    now: Any,
    oldest: Any,
    quota: Any,
    clocks: Any,
    counts: Any,
    free: Any,
    dead: Any,
    made: Any,
) -> Any:
    """Assign slots to ids from `start` on that have none, evicting where a bucket is at its quota.

    Args:
        ids: int64 [n].
        start: Where to continue.
        local: Number here of each of the 4096 buckets.
        heads: See the module's docstring.
        entries: As above.
        sizes: As above.
        policy: Meaning of marks.
        now: Step of this use.
        oldest: Least mark of an entry that has not expired.
        quota: Entries a bucket may have; 0 for any number.
        clocks: Uses of each bucket so far.
        counts: See NEXT_SLOT and the names beside it.
        free: Freed slots, counts[FREE_SLOTS] of them.
        dead: Regions left behind, [k, 2]: begin and length.
        made: For each id the slot assigned here, or -1.

    Returns:
        Where it stopped, and why.
    """
    for i in range(start, ids.shape[0]):
        key = ids[i]
        hashed = spread(key)
        bucket = np.int64(local[np.int64(hashed >> _TOP)])
        made[i] = -1
        begin, capacity = heads[bucket, BEGIN], heads[bucket, CAPACITY]
        position = _search(key, begin + _home(hashed, capacity), local, heads, entries)
        if entries[position, 1] != 0:
            continue
        if quota > 0 and heads[bucket, USED] >= quota:
            evict(bucket, 16, policy, oldest, heads, entries, clocks, counts, free)
        elif (heads[bucket, USED] + 1) * 5 > capacity * 4:
            if counts[DEAD] == dead.shape[0]:
                return i, DEAD_LIST_FULL
            if not _grow(bucket, heads, entries, sizes):
                return i, NO_CLASS
            dead[counts[DEAD], 0], dead[counts[DEAD], 1] = begin, capacity
            counts[DEAD] += 1
        if counts[FREE_SLOTS] > 0:
            counts[FREE_SLOTS] -= 1
            slot = free[counts[FREE_SLOTS]]
        elif counts[NEXT_SLOT] < counts[SLOT_LIMIT]:
            slot = counts[NEXT_SLOT]
            counts[NEXT_SLOT] += 1
        else:
            return i, NO_SLOT
        mark = _marked(policy, 0, now, clocks, bucket)
        _put(
            entries,
            heads[bucket, BEGIN],
            heads[bucket, CAPACITY],
            key,
            (np.int64(mark) << 32) | (np.int64(slot) + 1),
        )
        heads[bucket, USED] += 1
        counts[ROWS] += 1
        made[i] = slot
    return ids.shape[0], DONE


@jit
def entries_of(buckets: Any, heads: Any, entries: Any, oldest: Any, ids: Any, slots: Any) -> Any:
    """List the ids and slots of buckets that have not expired; return how many there are."""
    count = 0
    for bucket in buckets:
        begin = heads[bucket, BEGIN]
        for i in range(begin, begin + heads[bucket, CAPACITY]):
            value = entries[i, 1]
            if value != 0 and ((value >> 32) & _MASK) >= oldest:
                ids[count] = entries[i, 0]
                slots[count] = (value & _MASK) - 1
                count += 1
    return count


@jit
def find_marks(
    ids: Any, local: Any, heads: Any, entries: Any, oldest: Any, slots: Any, marks: Any
) -> None:
    """Put slot and mark of each id into slots and marks; slot -1 if absent or below `oldest`."""
    for i in range(ids.shape[0]):
        slots[i] = -1
        marks[i] = 0
        hashed = spread(ids[i])
        bucket = local[hashed >> _TOP]
        begin, capacity = heads[bucket, BEGIN], heads[bucket, CAPACITY]
        position: Any = np.int64(((hashed & _LOW) * np.uint64(capacity)) >> _HALF)
        while entries[begin + position, 1] != 0:
            if entries[begin + position, 0] == ids[i]:
                mark = (entries[begin + position, 1] >> 32) & _MASK
                if mark >= oldest:
                    slots[i] = (entries[begin + position, 1] & _MASK) - 1
                    marks[i] = mark
                break
            position += 1
            if position == capacity:
                position = 0


@jit
def list_marks(
    bucket: Any, heads: Any, entries: Any, oldest: Any, ids: Any, slots: Any, marks: Any
) -> Any:
    """List ids, slots and marks of a bucket, not below `oldest`; return how many there are."""
    begin = heads[bucket, BEGIN]
    count = 0
    for i in range(begin, begin + heads[bucket, CAPACITY]):
        value = entries[i, 1]
        mark = (value >> 32) & _MASK
        if value != 0 and mark >= oldest:
            ids[count] = entries[i, 0]
            slots[count] = (value & _MASK) - 1
            marks[count] = mark
            count += 1
    return count


@jit
def set_marks(ids: Any, local: Any, heads: Any, entries: Any, marks: Any) -> None:
    """Set the mark of each id that is there."""
    for i in range(ids.shape[0]):
        hashed = spread(ids[i])
        bucket = local[hashed >> _TOP]
        begin, capacity = heads[bucket, BEGIN], heads[bucket, CAPACITY]
        position: Any = np.int64(((hashed & _LOW) * np.uint64(capacity)) >> _HALF)
        while entries[begin + position, 1] != 0:
            if entries[begin + position, 0] == ids[i]:
                slot = entries[begin + position, 1] & _MASK
                entries[begin + position, 1] = (np.int64(marks[i]) << 32) | slot
                break
            position += 1
            if position == capacity:
                position = 0
