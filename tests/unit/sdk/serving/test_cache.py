"""The row cache of a reader: bounded in size and age."""

import numpy as np
import pytest

from gradmesh.sdk.serving.cache import RowCache


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    return RowCache(8, 2, np.dtype(np.float32), 10.0, clock)


def rows_of(ids):
    return np.stack([ids, ids], axis=1).astype(np.float32)


def held(cache, *ids):
    """Return the ids that the cache holds; check their rows."""
    wanted = np.array(ids, np.int64)
    out = np.full((wanted.size, 2), -1, np.float32)
    missing = cache.take(wanted, out)
    np.testing.assert_array_equal(out[~missing], rows_of(wanted[~missing]))
    return wanted[~missing].tolist()


def put(cache, *ids):
    cache.put(np.array(ids, np.int64), rows_of(np.array(ids)), cache.now())


def test_rows_come_back_until_they_are_too_old(cache, clock):
    put(cache, 1, 2)
    clock.now += 10

    assert held(cache, 2, 5, 1) == [2, 1]
    clock.now += 0.1
    assert held(cache, 1, 2) == []


def test_a_row_asked_for_again_is_young_again(cache, clock):
    put(cache, 1)
    clock.now += 9
    put(cache, 1)
    clock.now += 9

    assert held(cache, 1) == [1]


def test_rows_used_longest_ago_go_first(cache):
    put(cache, *range(4))
    put(cache, *range(4, 8))
    held(cache, 0, 1)

    put(cache, 100)

    assert len(cache) <= 8
    assert held(cache, 0, 1, 100) == [0, 1, 100]
    assert held(cache, 2, 3) == []


@pytest.mark.parametrize("count", [8, 9, 30])
def test_more_rows_than_fit(cache, count):
    put(cache, 500)
    put(cache, *range(count))

    assert len(cache) == 8
    assert held(cache, *range(count)) == list(range(8))
