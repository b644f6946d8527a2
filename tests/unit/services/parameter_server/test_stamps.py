import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.services.parameter_server.stamps import Stamps


def slots(*numbers):
    return np.array(numbers, np.int64)


def test_what_changed_after_the_look_is_named_by_its_place():
    stamps = Stamps()
    stamps.record("t", slots(1))
    count = stamps.watch(["t"])

    stamps.record("t", slots(5, 2**62, -3))
    stamps.record("u", slots(7))

    assert stamps.since(count, "t", slots(7, -3, 1, 5)).tolist() == [1, 3]
    assert stamps.since(stamps.watch(["t"]), "t", slots(7, -3, 1, 5)).tolist() == []


def test_of_a_table_that_nobody_watched_everything_may_have_changed():
    stamps = Stamps()
    early = stamps.watch(["t"])
    stamps.record("u", slots(1))
    stamps.watch(["u"])

    assert stamps.since(early, "u", slots(8, 9)).tolist() == [0, 1]
    assert stamps.since(early, "never", slots(8)).tolist() == [0]


def test_after_a_reset_everything_has_changed():
    stamps = Stamps()
    count = stamps.watch(["t"])

    stamps.forget("t")

    assert stamps.since(count, "t", slots(8, 9)).tolist() == [0, 1]
    assert stamps.since(stamps.watch(["t"]), "t", slots(8, 9)).tolist() == []


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), max_size=30),
    st.integers(0, 30),
    st.sampled_from([1, 3, 8, 100]),
)
def test_no_change_is_missed_however_little_is_remembered(steps, looked_at, max_rows):
    stamps = Stamps(max_rows)
    stamps.watch(["t"])
    changed: set[int] = set()
    count = None
    for step, rows in enumerate(steps):
        if step == looked_at:
            count = stamps.watch(["t"])
        stamps.record("t", slots(*rows))
        if count is not None:
            changed.update(rows)

    if count is None:
        count = stamps.watch(["t"])

    found = set(stamps.since(count, "t", np.arange(10)).tolist())
    assert found >= changed
    assert found == changed or max_rows < 100


@pytest.mark.parametrize("rows", [1, 1000])
def test_memory_is_bounded(rows):
    stamps = Stamps(max_rows=100)
    stamps.watch(["t"])

    for begin in range(0, 10_000, rows):
        stamps.record("t", np.arange(begin, begin + rows))

    assert len(stamps._stamps["t"]) <= max(100, rows)
