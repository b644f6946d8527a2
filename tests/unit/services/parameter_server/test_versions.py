import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.services.parameter_server.versions import RowVersions


def slots(*numbers):
    return np.array(numbers, np.int64)


def test_rows_changed_after_a_peek_are_listed_by_position():
    versions = RowVersions()
    versions.record("t", slots(1))
    count = versions.watch(["t"])

    versions.record("t", slots(5, 2**62, -3))
    versions.record("u", slots(7))

    assert versions.since(count, "t", slots(7, -3, 1, 5)).tolist() == [1, 3]
    assert versions.since(versions.watch(["t"]), "t", slots(7, -3, 1, 5)).tolist() == []


def test_an_unwatched_table_reports_every_row_as_changed():
    versions = RowVersions()
    early = versions.watch(["t"])
    versions.record("u", slots(1))
    versions.watch(["u"])

    assert versions.since(early, "u", slots(8, 9)).tolist() == [0, 1]
    assert versions.since(early, "never", slots(8)).tolist() == [0]


def test_after_a_reset_everything_has_changed():
    versions = RowVersions()
    count = versions.watch(["t"])

    versions.invalidate("t")

    assert versions.since(count, "t", slots(8, 9)).tolist() == [0, 1]
    assert versions.since(versions.watch(["t"]), "t", slots(8, 9)).tolist() == []


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
    versions = RowVersions(cell_bits, most)
    versions.watch(["t"])
    changed: set[int] = set()
    count = None
    for step, rows in enumerate(steps):
        if step == looked_at:
            count = versions.watch(["t"])
        versions.record("t", slots(*rows))
        if count is not None:
            changed.update(rows)

    if count is None:
        count = versions.watch(["t"])

    found = set(versions.since(count, "t", np.arange(10)).tolist())
    assert found >= changed
    assert found == changed or cell_bits < 4 or most < len(steps)


def test_when_a_cell_is_full_the_table_begins_anew():
    versions = RowVersions(most=2)
    counts = [versions.watch(["t"])]
    for row in range(4):
        versions.record("t", slots(row))
        counts.append(versions.watch(["t"]))

    found = [versions.since(count, "t", np.arange(4)).tolist() for count in counts]
    assert found == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [3], []]


def test_rows_far_apart_share_cells_and_none_is_missed():
    versions = RowVersions(cell_bits=8)
    count = versions.watch(["t"])
    rows = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50)

    versions.record("t", rows)

    assert versions.since(count, "t", rows).tolist() == list(range(50))
    others = versions.since(count, "t", np.random.default_rng(1).integers(0, 2**63 - 1, 1000)).size
    assert 100 < others < 300  # about 46 of 256 cells are taken
