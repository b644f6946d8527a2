import numpy as np

from gradmesh.engine.kernels import sketch

LOCAL = np.zeros(4096, np.int32)


def test_a_count_is_never_too_low():
    counters, uses = np.zeros((1, 64), np.uint8), np.zeros(1, np.int64)
    seen = np.empty(20, np.bool_)

    for _ in range(3):
        sketch.count_uses(np.arange(20), LOCAL, counters, uses, 3, True, seen)

    assert seen.all()


def test_peeking_does_not_count_as_use():
    counters, uses = np.zeros((1, 64), np.uint8), np.zeros(1, np.int64)
    seen = np.empty(1, np.bool_)

    for _ in range(5):
        sketch.count_uses(np.array([7]), LOCAL, counters, uses, 1, False, seen)

    assert (seen.tolist(), counters.sum()) == ([False], 0)


def test_counters_are_halved_when_they_are_old():
    counters, uses = np.zeros((1, 8), np.uint8), np.zeros(1, np.int64)
    seen = np.empty(64, np.bool_)

    sketch.count_uses(np.full(64, 7), LOCAL, counters, uses, 1, True, seen)

    assert counters.max() == 32
    assert uses[0] == 0


def test_a_draw_depends_on_seed_and_id_alone():
    ids = np.arange(-5000, 5000)
    first, again, other = (np.empty(ids.size, np.bool_) for _ in range(3))
    limit = np.uint64(2**63)

    sketch.drawn(ids, np.uint64(1), limit, first)
    sketch.drawn(ids, np.uint64(1), limit, again)
    sketch.drawn(ids, np.uint64(2), limit, other)

    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert 0.47 < first.mean() < 0.53
