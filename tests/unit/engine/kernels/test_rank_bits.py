import numpy as np

from gradmesh.engine.kernels import rank_bits
from gradmesh.protos.sharding import BUCKETS, buckets_of


def owned(limit):
    """Bits of the ids below a limit whose bucket is odd."""
    local = np.where(np.arange(BUCKETS) % 2, 1, -1).astype(np.int32)
    words = np.zeros((-(-limit // 64), 2), np.uint64)
    count = rank_bits.mark_owned(words, limit, local)
    ids = np.arange(limit)
    return words, count, ids[buckets_of(ids) % 2 == 1]


def test_a_rank_is_the_place_among_the_members():
    words, count, members = owned(10_007)
    found = np.empty(members.size, np.int64)

    foreign = rank_bits.ranks(members, words, found)

    assert (foreign, count) == (-1, members.size)
    np.testing.assert_array_equal(found, np.arange(members.size))


def test_the_first_foreign_id_is_returned():
    words, _, members = owned(1000)
    foreign = np.setdiff1d(np.arange(1000), members)[:1]

    place = rank_bits.ranks(np.concatenate([members[:3], foreign]), words, np.empty(4, np.int64))

    assert place == 3


def test_members_are_found_by_rank():
    words, count, members = owned(10_007)
    slots = np.random.default_rng(0).permutation(count)
    ids = np.empty(count, np.int64)

    rank_bits.select(slots, words, ids)

    np.testing.assert_array_equal(ids, members[slots])


def test_a_bit_is_set_once():
    bits, out = np.zeros(4, np.uint8), np.empty(5, np.int64)

    first = rank_bits.first_uses(np.array([3, 9, 3, -1, 31]), bits, out)
    fresh = out[:first].tolist()
    again = rank_bits.first_uses(np.array([9, 8]), bits, out)
    seen = np.empty(3, np.int64)
    rank_bits.absent(np.array([3, 4, 8]), bits, seen)

    assert fresh == [3, 9, 31]
    assert out[:again].tolist() == [8]
    assert seen.tolist() == [3, -1, 8]
