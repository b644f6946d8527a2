"""A set of ids as a bitmap with counts: the rank of an id is its position in a shard.

`words`, uint64 [n, 2], holds 64 bits and the number of members before them. That is a quarter of a
byte per id and one cache line per query; a table of positions takes four bytes per id.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit
from gradmesh.engine.kernels.hashing import spread

_ONE = np.uint64(1)
_TOP = np.uint64(52)
_LOW6 = np.uint64(63)
_PAIRS = np.uint64(0x5555555555555555)
_FOURS = np.uint64(0x3333333333333333)
_EIGHTS = np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)


@inline
def _popcount(word: Any) -> Any:
    x = word - ((word >> _ONE) & _PAIRS)
    x = (x & _FOURS) + ((x >> np.uint64(2)) & _FOURS)
    x = (x + (x >> np.uint64(4))) & _EIGHTS
    return (x * _BYTES) >> np.uint64(56)


@jit
def mark_owned(words: Any, limit: Any, local: Any) -> Any:
    """Set the bits of ids below `limit` whose bucket is here; return how many there are."""
    count = np.uint64(0)
    for w in range(words.shape[0]):
        words[w, 1] = count
        bits = np.uint64(0)
        for id_ in range(64 * w, min(64 * w + 64, limit)):
            if local[spread(id_) >> _TOP] >= 0:
                bits |= _ONE << np.uint64(id_ - 64 * w)
        words[w, 0] = bits
        count += _popcount(bits)
    return np.int64(count)


@jit
def outside(ids: Any, limit: Any) -> Any:
    """Return the position of the first id that is not in [0, limit), or -1."""
    for i in range(ids.shape[0]):
        if ids[i] < 0 or ids[i] >= limit:
            return i
    return -1


@jit
def ranks(ids: Any, words: Any, out: Any) -> Any:
    """Put the rank of each id into out; return the position of the first absent id, or -1."""
    for i in range(ids.shape[0]):
        id_ = np.uint64(ids[i])
        word = id_ >> np.uint64(6)
        bit = _ONE << (id_ & _LOW6)
        bits = words[word, 0]
        if bits & bit == 0:
            return i
        out[i] = np.int64(words[word, 1] + _popcount(bits & (bit - _ONE)))
    return -1


@jit
def select(slots: Any, words: Any, ids: Any) -> None:
    """Put the member of each rank into ids."""
    for i in range(slots.shape[0]):
        rank = np.uint64(slots[i])
        low, high = 0, words.shape[0]
        while high - low > 1:
            middle = (low + high) // 2
            if words[middle, 1] <= rank:
                low = middle
            else:
                high = middle
        left = np.int64(rank - words[low, 1])
        bits = words[low, 0]
        for _ in range(left):
            bits &= bits - _ONE
        ids[i] = 64 * low + np.int64(_popcount((bits & (~bits + _ONE)) - _ONE))


@jit
def first_uses(slots: Any, bits: Any, out: Any) -> Any:
    """Set the bit of each slot in uint8 [m]; list the slots whose bit was not set; return how many.

    A slot below 0 is none.
    """
    count = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if slot >= 0:
            bit = np.uint8(1 << (slot & 7))
            held = bits[slot >> 3]
            if held & bit == 0:
                bits[slot >> 3] = held | bit
                out[count] = slot
                count += 1
    return count


@jit
def absent(slots: Any, bits: Any, out: Any) -> None:
    """Put each slot whose bit is set into out, -1 for the others."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        out[i] = slot if bits[slot >> 3] & np.uint8(1 << (slot & 7)) != 0 else -1
