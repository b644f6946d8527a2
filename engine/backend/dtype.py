"""Dtypes and the promotion rule.

The rule is torch's: of two arrays the one of the higher category (bool < integer < float)
decides; within a category numpy's table holds, and float16 with bfloat16 gives float32. A Python
number never widens a dtype, it only lifts the category, and then to the default float32 or int64.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gradmesh.engine.backend.errors import DtypeError

float16: np.dtype[Any] = np.dtype("float16")
float32: np.dtype[Any] = np.dtype("float32")
float64: np.dtype[Any] = np.dtype("float64")
bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
uint8: np.dtype[Any] = np.dtype("uint8")
int8: np.dtype[Any] = np.dtype("int8")
int16: np.dtype[Any] = np.dtype("int16")
int32: np.dtype[Any] = np.dtype("int32")
int64: np.dtype[Any] = np.dtype("int64")
bool_: np.dtype[Any] = np.dtype("bool")

FLOATS = frozenset({float16, bfloat16, float32, float64})
INTS = frozenset({uint8, int8, int16, int32, int64})
SUPPORTED = FLOATS | INTS | {bool_}


def is_float(dtype: np.dtype[Any]) -> bool:
    """Tell whether tensors of this dtype can carry gradients."""
    return dtype in FLOATS


def as_dtype(value: Any) -> np.dtype[Any]:
    """Read a dtype from a name, a numpy type or a dtype.

    Raises:
        DtypeError: If the engine has no such dtype.
    """
    try:
        dtype = bfloat16 if value == "bfloat16" else np.dtype(value)
    except TypeError as error:
        raise DtypeError(f"not a dtype: {value!r}") from error
    if dtype not in SUPPORTED:
        raise DtypeError(
            f"dtype {dtype} is not supported; use one of {sorted(map(str, SUPPORTED))}"
        )
    return dtype


def _category(dtype: np.dtype[Any]) -> int:
    if dtype in FLOATS:
        return 2
    return 1 if dtype in INTS else 0


def promote(first: np.dtype[Any], second: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of an operation on two arrays."""
    if first == second:
        return first
    ranks = _category(first), _category(second)
    if ranks[0] != ranks[1]:
        return first if ranks[0] > ranks[1] else second
    if bfloat16 in (first, second):
        return float32 if float16 in (first, second) else max(first, second, key=_itemsize)
    return np.promote_types(first, second)


def promote_scalar(dtype: np.dtype[Any], scalar: bool | int | float) -> np.dtype[Any]:
    """Return the dtype of an operation on an array and a Python number."""
    if isinstance(scalar, bool):
        return dtype
    if isinstance(scalar, int):
        return int64 if dtype == bool_ else dtype
    return dtype if dtype in FLOATS else float32


def _itemsize(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize
