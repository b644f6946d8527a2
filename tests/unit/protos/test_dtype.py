import numpy as np
import pytest

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY, numpy_dtype, wire_dtype
from gradmesh.protos.errors import InvalidRequest


def test_every_element_type_has_numpys() -> None:
    numbers = set(array_pb2.ElementType.values()) - {array_pb2.ELEMENT_TYPE_UNSPECIFIED}

    assert set(WIRE_TO_NUMPY) == numbers
    assert all(wire_dtype(numpy_dtype(number)) == number for number in numbers)


@pytest.mark.parametrize("alias", [np.longlong, np.ulonglong, np.intp, float, int, bool, ">i4"])
def test_other_names_of_a_type_are_the_type(alias: object) -> None:
    dtype = np.dtype(alias)  # type: ignore[call-overload]

    assert numpy_dtype(wire_dtype(dtype)) == dtype.newbyteorder("<")


@pytest.mark.parametrize("name", ["c8", "g", "O", "U3", "S3", "M8[s]", "m8[s]", "V4", "i4,f4"])
def test_types_without_a_place_in_the_contract_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be sent; use one of bool, int8, .*bfloat16"):
        wire_dtype(np.dtype(name))


@pytest.mark.parametrize("number", [0, 14, -1, 2**40])
def test_unknown_numbers_are_refused(number: int) -> None:
    with pytest.raises(InvalidRequest, match="unknown element type"):
        numpy_dtype(number)
