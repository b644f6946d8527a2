import ml_dtypes
import numpy as np
import pytest

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.precision import EXACT, pack, unpack, unpack_all, wire_number

ROWS = np.random.default_rng(1).standard_normal((20, 16)).astype(np.float32)


def test_exact_rows_are_not_touched() -> None:
    assert pack(ROWS, EXACT)[0] is ROWS
    assert unpack([ROWS], EXACT) is ROWS


@pytest.mark.parametrize(
    ("name", "dtype", "error"),
    [
        ("float16", np.float16, 1e-3),
        ("bfloat16", ml_dtypes.bfloat16, 1e-2),
        ("int8", np.int8, 5e-3),
    ],
)
def test_rows_come_back_nearly(name: str, dtype: type, error: float) -> None:
    wire = wire_number(name)

    packed = pack(ROWS, wire)
    back = unpack(packed, wire)

    assert packed[0].dtype == dtype
    assert back.dtype == np.float32
    largest = np.abs(ROWS).max(axis=1, keepdims=True)
    assert (np.abs(back - ROWS) <= error * largest).all()


def test_int8_keeps_the_largest_element_and_zero_rows() -> None:
    rows = np.array([[0, 0], [127, -1], [-1e-30, 1e-30]], np.float32)

    back = unpack(pack(rows, wire_number("int8")), wire_number("int8"))

    np.testing.assert_array_equal(back[0], 0)
    np.testing.assert_allclose(back[1], [127, -1])
    assert np.isfinite(back).all()


def test_no_rows_travel_in_every_precision() -> None:
    for name in ("float16", "bfloat16", "int8"):
        wire = wire_number(name)

        assert unpack(pack(np.empty((0, 4), np.float32), wire), wire).shape == (0, 4)


def test_wrong_arrays_are_refused() -> None:
    int8 = wire_number("int8")
    rows, steps = pack(ROWS, int8)

    for arrays, wire in (
        ([rows], int8),
        ([rows, steps[:3]], int8),
        ([ROWS, steps], int8),
        ([rows, steps.astype(np.float64)], int8),
        ([ROWS], wire_number("float16")),
        ([rows[0], steps], int8),
        ([ROWS], array_pb2.ELEMENT_TYPE_INT64),
    ):
        with pytest.raises(InvalidRequest):
            unpack_all(arrays, wire)


def test_unknown_precisions_are_named() -> None:
    with pytest.raises(InvalidRequest, match="'float8'; use one of float16, bfloat16, int8"):
        wire_number("float8")
