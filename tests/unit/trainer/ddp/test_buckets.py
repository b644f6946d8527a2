import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmesh.trainer.ddp.buckets import digest, lay_out

F4, F8 = np.dtype("f4"), np.dtype("f8")
PARAMETERS = [("a", (2, 3), F4), ("b", (4,), F4), ("c", (), F4)]


def test_last_created_comes_first_without_gaps():
    (bucket,) = lay_out(PARAMETERS)

    places = [(entry.name, entry.offset, entry.size) for entry in bucket.entries]
    assert places == [("c", 0, 1), ("b", 1, 4), ("a", 5, 6)]
    assert bucket.size == 11


def test_dtypes_have_buckets_of_their_own():
    buckets = lay_out([("a", (2,), F4), ("b", (3,), F8), ("c", (4,), F4)])

    held = {str(b.dtype): [entry.name for entry in b.entries] for b in buckets}
    assert held == {"float32": ["c", "a"], "float64": ["b"]}


@pytest.mark.parametrize(
    ("bucket_bytes", "names"),
    [(1000, [["c", "b", "a"]]), (20, [["c", "b"], ["a"]]), (4, [["c"], ["b"], ["a"]])],
)
def test_full_bucket_makes_room_for_the_next(bucket_bytes, names):
    buckets = lay_out(PARAMETERS, bucket_bytes)

    assert [[entry.name for entry in bucket.entries] for bucket in buckets] == names


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([F4, F8])), max_size=20),
    st.one_of(st.none(), st.integers(1, 500)),
)
def test_every_parameter_has_one_place_and_buckets_keep_their_budget(sizes, bucket_bytes):
    parameters = [(f"p{i}", (size,), dtype) for i, (size, dtype) in enumerate(sizes)]

    buckets = lay_out(parameters, bucket_bytes)

    placed = [entry.name for bucket in buckets for entry in bucket.entries]
    assert sorted(placed) == sorted(name for name, _, _ in parameters)
    for bucket in buckets:
        ends = [entry.offset + entry.size for entry in bucket.entries]
        assert [entry.offset for entry in bucket.entries] == [0, *ends[:-1]]
        fits = bucket_bytes is None or bucket.size * bucket.dtype.itemsize <= bucket_bytes
        # Empty parameters may join a single one that is too big by itself.
        assert fits or sum(1 for entry in bucket.entries if entry.size) == 1


def test_nothing_needs_no_bucket():
    assert lay_out([]) == []


@pytest.mark.parametrize(
    "others",
    [
        PARAMETERS[:2],
        [*PARAMETERS[:2], ("c", (1,), F4)],
        [*PARAMETERS[:2], ("c", (), F8)],
        [*PARAMETERS[:2], ("d", (), F4)],
        PARAMETERS[::-1],
    ],
)
def test_digest_tells_layouts_apart(others):
    assert digest(lay_out(PARAMETERS)) == digest(lay_out(list(PARAMETERS)))
    assert digest(lay_out(PARAMETERS)) != digest(lay_out(others))
