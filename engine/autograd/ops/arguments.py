"""Check the arguments of ops: axes, integers, operands, and ids given as lists or arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gradmesh.engine.backend import Array, DimError, DtypeError, ShapeError, device_of, to_device


def axis_of(name: str, dim: Any, ndim: int) -> int:
    """Return an axis counted from the front; a tensor without axes counts as having one.

    Raises:
        DimError: If there is no such axis.
        DtypeError: If the axis is not an integer.
    """
    axis = dim if type(dim) is int else as_int(name, "an axis", dim)
    count = ndim or 1
    if -count <= axis < count:
        return axis % count
    raise DimError(
        f"{name}: a tensor with {ndim} axes has no axis {axis}; use -{count} to {count - 1}"
    )


def axes_of(name: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the front, all if dim is None or empty; () for a scalar.

    Raises:
        DimError: If there is no such axis.
        DtypeError: If an axis is not an integer.
        ShapeError: If an axis is given twice.
    """
    if dim is None:
        return tuple(range(ndim))
    given = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    axes = tuple([axis_of(name, d, ndim) for d in given])
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: an axis appears twice in {given}")
    return (axes or tuple(range(ndim))) if ndim else ()


def as_int(name: str, what: str, value: Any) -> int:
    """Return a value that must be an integer.

    Raises:
        DtypeError: If it is not.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise DtypeError(f"{name}: {what} is an integer, not {type(value).__name__}") from error


def check_operands(name: str, a: Any, b: Any) -> None:
    """Raise unless both operands are tensors, arrays or numbers, and one has a dtype.

    Raises:
        DtypeError: If they are not.
    """
    for operand in (a, b):
        if not hasattr(operand, "dtype") and not isinstance(operand, (int, float)):
            raise DtypeError(f"{name}: takes tensors and numbers, not {type(operand).__name__}")
    if not hasattr(a, "dtype") and not hasattr(b, "dtype"):
        raise DtypeError(f"{name}: takes a tensor and a number or two tensors, not two numbers")


# These have no device, so they are moved to that of the table.
_PLAIN = (np.ndarray, np.generic, list, tuple, int)


def array_of(given: Any) -> Array:
    """Return the array of a tensor; an array as it is."""
    # An array's own `data` is its memory.
    return given.data if hasattr(given, "requires_grad") else given


def ids_of(name: str, given: Any, table: Any) -> Array:
    """Return ids or offsets as an array of integers.

    Args:
        name: Of the op and the argument, for the message.
        given: A tensor, array, list or number.
        table: What the ids are rows of.

    Raises:
        DtypeError: If they are not integers.
    """
    ids = array_of(given)
    if isinstance(ids, _PLAIN) and ids is given:
        ids = np.asarray(given)
        # numpy takes an empty list for floats.
        ids = ids if ids.size or hasattr(given, "dtype") else ids.astype(np.int64)
        ids = to_device(ids, device_of(array_of(table)))
    dtype = getattr(ids, "dtype", None)
    if dtype is None or dtype.kind not in "iu":
        raise DtypeError(f"{name} are integers, not {dtype or type(given).__name__}")
    return ids


def factors_of(given: Any, table: Any) -> Any:
    """Return factors: a tensor as it is, all else in the dtype and on the device of the table."""
    if not isinstance(given, _PLAIN):
        return given
    beside = array_of(table)
    return to_device(np.asarray(given, dtype=beside.dtype), device_of(beside))
