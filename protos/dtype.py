"""Element types of the wire and their numpy dtypes, one to one. All are little-endian."""

from typing import Any

import ml_dtypes
import numpy as np

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.errors import InvalidRequest

_BY_NAME = {
    name.removeprefix("ELEMENT_TYPE_").lower(): number
    for name, number in array_pb2.ElementType.items()
    if number
}

WIRE_TO_NUMPY: dict[int, np.dtype[Any]] = {
    number: np.dtype(ml_dtypes.bfloat16)
    if name == "bfloat16"
    else np.dtype(np.dtype(name).newbyteorder("<").str)
    for name, number in _BY_NAME.items()
}
"""The numpy dtype of each element type of the wire."""

_NUMPY_TO_WIRE = {dtype: number for number, dtype in WIRE_TO_NUMPY.items()}


def wire_dtype(dtype: np.dtype[Any]) -> int:
    """Return the wire number of a numpy dtype.

    Raises:
        InvalidRequest: The contract has no such dtype, e.g. complex or object.
    """
    number = _NUMPY_TO_WIRE.get(dtype) or _NUMPY_TO_WIRE.get(dtype.newbyteorder("<"))
    if number is None:
        allowed = ", ".join(_BY_NAME)
        raise InvalidRequest(f"dtype {dtype!s} cannot be sent; use one of {allowed}", dtype=dtype)
    return number


def numpy_dtype(number: int) -> np.dtype[Any]:
    """Return the numpy dtype of a wire number.

    Raises:
        InvalidRequest: The contract has no such number.
    """
    try:
        return WIRE_TO_NUMPY[number]
    except KeyError:
        raise InvalidRequest(f"unknown element type {number}", element_type=number) from None
