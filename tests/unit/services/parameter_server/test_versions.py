import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.services.parameter_server.versions import Stamps


def slots(*numbers):
    return np.array(numbers, np.int64)


def test_rows_changed_after_a_peek_are_listed_by_position():
    stamps = Stamps()
    stamps.record("t", slots(1))
    count = stamps.watch(["t"])

    stamps.record("t", slots(5, 2**62, -3))
    stamps.record("u", slots(7))

    assert stamps.since(count, "t", slots(7, -3, 1, 5)).tolist() == [1, 3]
    assert stamps.since(stamps.watch(["t"]), "t", slots(7, -3, 1, 5)).tolist() == []


def test_an_unwatched_table_reports_every_row_as_changed():
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
    st.sampled_from([0, 1, 3, 4]),
    st.sampled_from([1, 7, 1000]),
)
def test_no_change_is_missed_with_any_number_of_recorded_versions(
    steps, looked_at, cell_bits, most
):
    stamps = Stamps(cell_bits, most)
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
    assert found == changed or cell_bits < 4 or most < len(steps)


def test_when_a_cell_is_full_the_table_begins_anew():
    stamps = Stamps(most=2)
    counts = [stamps.watch(["t"])]
    for row in range(4):
        stamps.record("t", slots(row))
        counts.append(stamps.watch(["t"]))

    found = [stamps.since(count, "t", np.arange(4)).tolist() for count in counts]
    assert found == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [3], []]


def test_rows_far_apart_share_cells_and_none_is_missed():
    stamps = Stamps(cell_bits=8)
    count = stamps.watch(["t"])
    rows = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50)

    stamps.record("t", rows)

    assert stamps.since(count, "t", rows).tolist() == list(range(50))
    others = stamps.since(count, "t", np.random.default_rng(1).integers(0, 2**63 - 1, 1000)).size
    assert 100 < others < 300  # about 46 of 256 cells are taken
