"""Which axes an op works along: counted from either end, and checked."""

from __future__ import annotations

import operator
from typing import Any

from gradmesh.engine.backend import DimError, DtypeError, ShapeError


def axis_of(name: str, dim: Any, ndim: int) -> int:
    """Return the place of an axis from the front; a tensor without axes counts as having one.

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
    """Return the places of some axes, or of all for None and for none; () without axes.

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
