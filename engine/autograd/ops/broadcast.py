"""Broadcasting and dtype promotion of two operands, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.autograd.ops.floats import as_float, total
from gradmesh.engine.backend import Array, DtypeError, ShapeError
from gradmesh.engine.backend.dtype import bool_, promote_scalar, result_dtype

# Python's own, which numpy lets take the array's dtype; a subclass, numpy's float64, widens it.
_NUMBERS = frozenset({int, float})


def align(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands in their common dtype; Python numbers stay numbers.

    Raises:
        ShapeError: If the shapes do not broadcast.
    """
    if isinstance(a, (int, float)):
        b, a = _with_number(b, a)
        return a, b
    if isinstance(b, (int, float)):
        return _with_number(a, b)
    if a.shape != b.shape:
        check_shapes(name, a.shape, b.shape)
    if a.dtype != b.dtype:
        dtype = result_dtype(a, b)
        return a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    return a, b


def align_floats(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Align as `align` does, and convert integers to float32 as division requires."""
    if isinstance(a, (int, float)):
        b, a = _with_number(as_float(b), a)
        return a, b
    if isinstance(b, (int, float)):
        return _with_number(as_float(a), b)
    a, b = align(name, a, b)
    return as_float(a), as_float(b)


def spec(operand: Any) -> Any:
    """Return shape and dtype of an operand for `unbroadcast`, None for a number."""
    try:
        return None if isinstance(operand, (int, float)) else (operand.shape, operand.dtype)
    except AttributeError:
        kind = type(operand).__name__
        raise TypeError(f"operands are tensors, arrays and numbers, not {kind}") from None


def unbroadcast(grad: Array, like: Any) -> Array:
    """Sum a gradient back to the shape and dtype of the operand it belongs to."""
    shape, dtype = like
    if grad.shape != shape:
        extra = grad.ndim - len(shape)
        axes = tuple(range(extra)) + tuple(
            extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1
        )
        grad = total(grad, axes, True) if axes else grad
        grad = grad.reshape(shape)
    return grad if grad.dtype == dtype else grad.astype(dtype)


def as_number(value: Any) -> Any:
    """Return a numpy scalar as a Python number, whose range is checked; all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_shapes(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Raise ShapeError if two shapes do not broadcast."""
    for m, n in zip(reversed(first), reversed(second), strict=False):
        if m != n and m != 1 and n != 1:
            raise ShapeError(f"{name}: shapes {tuple(first)} and {tuple(second)} do not broadcast")


def broadcast_shape(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to.

    Raises:
        ShapeError: If they do not.
    """
    check_shapes(name, first, second)
    ndim = max(len(first), len(second))
    pairs = zip(
        (1,) * (ndim - len(first)) + tuple(first),
        (1,) * (ndim - len(second)) + tuple(second),
        strict=True,
    )
    return tuple(n if m == 1 else m for m, n in pairs)


def refuse_bools(name: str, *operands: Any) -> None:
    """Raise DtypeError if an operand is bool: differences of bools are undefined."""
    if any(isinstance(x, bool) or getattr(x, "dtype", None) == bool_ for x in operands):
        raise DtypeError(f"{name}: does not take bool; compare with !=, or use .int() first")


def _with_number(array: Array, number: Any) -> tuple[Array, Any]:
    """Return an array in the dtype it has beside a number, and the number so that it stays."""
    if 11 <= array.dtype.num <= 12 and type(number) in _NUMBERS:
        return array, number
    if isinstance(number, np.floating):
        number = float(number)
    dtype = promote_scalar(array.dtype, number)
    if dtype != array.dtype:
        array = array.astype(dtype)
    if dtype.num >= 256:
        # bfloat16 is not one of numpy's own.
        return array, dtype.type(number)
    if dtype.kind in "iu" and not isinstance(number, bool):
        return array, _wrapped(number, dtype)
    return array, number


def filling(name: str, number: Any, dtype: Any) -> Any:
    """Return a number as one of a dtype; negative ones wrap around in uint8, as in torch.

    Raises:
        DtypeError: If integers cannot hold it.
    """
    if dtype.kind not in "iu" or isinstance(number, bool):
        return dtype.type(number)
    ends = np.iinfo(dtype)
    lowest = -ends.max if dtype.kind == "u" and isinstance(number, int) else ends.min
    if not lowest <= number <= ends.max:
        raise DtypeError(f"{name}: a tensor of {dtype} cannot hold {number}; cast it first")
    return dtype.type(_wrapped(int(number), dtype))


def _wrapped(number: int, dtype: Any) -> int:
    """Return the number as the dtype stores it; integers wrap around as in torch."""
    bits = 8 * int(dtype.itemsize)
    low = number & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low
