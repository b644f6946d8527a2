"""Dtypes and the promotion rule.

The rule is torch's: of two arrays the one of the higher category (bool < integer < float)
decides; within a category numpy's table holds, and float16 with bfloat16 gives float32. An array
without axes beside one with axes only lifts the category, to its own dtype; so does a Python
number, to the default float32 or int64.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gradmesh.engine.errors import DtypeError

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
    """Return whether tensors of this dtype can carry gradients."""
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


def result_dtype(*operands: Any) -> np.dtype[Any]:
    """Return the dtype of an operation on arrays, with and without axes, and numbers."""
    found: list[np.dtype[Any] | None] = [None, None]
    numbers = []
    for operand in operands:
        if isinstance(operand, np.generic):
            # Numbers, too, of any width: only the category is used.
            operand = operand.item()
        if isinstance(operand, (bool, int, float)):
            numbers.append(operand)
            continue
        position = 0 if operand.ndim else 1
        known = found[position]
        found[position] = operand.dtype if known is None else promote(known, operand.dtype)
    with_axes, bare = found
    if with_axes is None or bare is None:
        dtype = bare if with_axes is None else with_axes
    else:
        dtype = with_axes if _category(with_axes) >= _category(bare) else bare
    for number in numbers:
        dtype = default_dtype(number) if dtype is None else promote_scalar(dtype, number)
    assert dtype is not None, "an operation has operands"
    return dtype


def default_dtype(number: bool | int | float) -> np.dtype[Any]:
    """Return the dtype of a tensor made from a Python number."""
    if isinstance(number, bool):
        return bool_
    return int64 if isinstance(number, int) else float32


def can_hold(target: np.dtype[Any], result: np.dtype[Any]) -> bool:
    """Return whether a result may be written into an array: its category is not higher."""
    return _category(result) <= _category(target)


def _itemsize(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize
