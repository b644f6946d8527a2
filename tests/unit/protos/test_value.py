import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import value_pb2 as pb
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.protos.value import from_value, to_value

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=20,
)


def round_trip(obj: object) -> Any:
    arrays: list[np.ndarray[Any, Any]] = []
    value = to_value(obj, arrays)
    return from_value(pb.Value.FromString(value.SerializeToString()), arrays)


def nested(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


@settings(max_examples=80, deadline=None, derandomize=True)
@given(plain)
def test_plain_values_return_equal_and_of_the_same_type(obj: object) -> None:
    got = round_trip(obj)

    assert got == obj
    assert type(got) is type(obj)


def test_nan_is_preserved() -> None:
    assert math.isnan(round_trip(float("nan")))


def test_arrays_travel_beside_the_value() -> None:
    ids, rows = np.arange(3), np.ones((3, 2), np.float32)
    arrays: list[np.ndarray[Any, Any]] = []

    value = to_value({"ids": ids, "more": [rows, ids]}, arrays)

    assert [a is b for a, b in zip(arrays, [ids, rows, ids], strict=True)] == [True] * 3
    assert from_value(value, arrays)["more"][0] is rows


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.float64(1.5), np.int8(3), np.True_])
def test_numpy_scalars_become_arrays_without_axes(scalar: np.generic) -> None:
    got = round_trip(scalar)

    assert got.shape == ()
    assert got.dtype == scalar.dtype
    assert got == scalar


def test_tuples_stay_tuples_and_mappings_arrive_as_dicts() -> None:
    assert round_trip((1, [2, (3,)])) == (1, [2, (3,)])
    assert type(round_trip(OrderedDict(a=1))) is dict


def test_references_are_serialised() -> None:
    ref = pb.RemoteRef(owner="ps-0", creator="trainer-1", incarnation=3, counter=4)

    assert round_trip([ref]) == [ref]


@pytest.mark.parametrize(
    "obj",
    [object(), {1, 2}, 1j, {1: 2}, lambda: 0, int, bytearray(b"x"), [{"a": object()}]],
    ids=lambda obj: type(obj).__name__,
)
def test_other_objects_are_refused(obj: object) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent; use numbers, text, bytes"):
        to_value(obj, [])


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**99])
def test_integers_of_more_than_64_bits_are_refused(number: int) -> None:
    with pytest.raises(InvalidRequest, match="more than 64 bits"):
        to_value(number, [])


@pytest.mark.parametrize("obj", ["\ud800", {"\ud800": 1}], ids=["text", "key"])
def test_text_that_is_not_unicode_is_refused(obj: object) -> None:
    with pytest.raises(InvalidRequest, match="not Unicode"):
        to_value(obj, [])


def test_depth_is_limited_both_ways() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep = pb.Value(list_value=pb.ListValue())
    for _ in range(limits.MAX_VALUE_DEPTH + 1):
        deep = pb.Value(list_value=pb.ListValue(items=[deep]))

    assert round_trip(nested(limits.MAX_VALUE_DEPTH)) == nested(limits.MAX_VALUE_DEPTH)
    with pytest.raises(InvalidRequest, match="nested deeper than 32"):
        to_value(endless, [])
    with pytest.raises(InvalidFrame, match="nested deeper than 32"):
        from_value(deep, [])


@pytest.mark.parametrize("value", [pb.Value(), pb.Value(array_index=0), pb.Value(array_index=9)])
def test_empty_and_dangling_values_are_refused(value: pb.Value) -> None:
    with pytest.raises(InvalidFrame, match="empty or points to an array that was not sent"):
        from_value(value, [])
