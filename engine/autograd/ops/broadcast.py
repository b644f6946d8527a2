"""Broadcasting and dtype promotion of two operands, forward and backward."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.backend import Array, ShapeError
from gradmesh.engine.backend.dtype import FLOATS, float32, promote, promote_scalar


def align(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands in their common dtype; Python numbers stay numbers.

    Raises:
        ShapeError: If the shapes do not broadcast.
    """
    if isinstance(a, (int, float)):
        b = _lift(b, a)
        return _fitted(a, b), b
    if isinstance(b, (int, float)):
        a = _lift(a, b)
        return a, _fitted(b, a)
    if a.shape != b.shape:
        _check_shapes(name, a.shape, b.shape)
    if a.dtype != b.dtype:
        dtype = promote(a.dtype, b.dtype)
        return a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    return a, b


def align_floats(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Do as `align`, and lift integers to float32 as a division must."""
    a, b = align(name, a, b)
    if not _is_number(a) and a.dtype not in FLOATS:
        a = a.astype(float32)
    if not _is_number(b) and b.dtype not in FLOATS:
        b = b.astype(float32)
    return a, b


def _is_number(operand: Any) -> bool:
    return isinstance(operand, (int, float)) or not hasattr(operand, "strides")


def spec(operand: Any) -> Any:
    """Return what `unbroadcast` must know of an operand, None for a number."""
    return None if isinstance(operand, (int, float)) else (operand.shape, operand.dtype)


def unbroadcast(grad: Array, like: Any) -> Array:
    """Sum a gradient back to the shape and dtype of the operand it belongs to."""
    shape, dtype = like
    if grad.shape != shape:
        extra = grad.ndim - len(shape)
        axes = tuple(range(extra)) + tuple(
            extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1
        )
        grad = grad.sum(axis=axes, keepdims=True) if axes else grad
        grad = grad.reshape(shape)
    return grad if grad.dtype == dtype else grad.astype(dtype)


def _lift(array: Array, scalar: Any) -> Array:
    dtype = promote_scalar(array.dtype, scalar)
    return array if dtype == array.dtype else array.astype(dtype)


def _fitted(scalar: Any, array: Array) -> Any:
    """Return a number that leaves the array's dtype alone; bfloat16 is not one of numpy's own."""
    return array.dtype.type(scalar) if array.dtype.num >= 256 else scalar


def _check_shapes(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    for m, n in zip(reversed(first), reversed(second), strict=False):
        if m != n and m != 1 and n != 1:
            raise ShapeError(f"{name}: shapes {tuple(first)} and {tuple(second)} do not broadcast")
