"""Floor division and its remainder, which has the sign of the divisor."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.broadcast import align, spec, unbroadcast
from gradmesh.engine.autograd.ops.operand import check_operands
from gradmesh.engine.backend import Array, DtypeError
from gradmesh.engine.backend.dtype import FLOATS, bool_
from gradmesh.engine.errors import GradientError


class _Remainder(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(a, b)
        a, b = _aligned("remainder", a, b)
        return a % b

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        need_a, need_b = ctx.needs_input_grad
        grad_b = None
        if need_b:
            a, b = align("remainder", *ctx.saved_tensors)
            grad_b = unbroadcast(-grad * (a // b), ctx.b)
        return unbroadcast(grad, ctx.a) if need_a else None, grad_b


class _FloorDivide(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        a, b = _aligned("floor_divide", a, b)
        return a // b

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        raise GradientError(
            "floor_divide has no derivative; detach its operands, or divide with / instead"
        )


def _has_zero(b: Any) -> bool:
    return not b if isinstance(b, int) else bool((b == 0).any())


def _aligned(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands in their common dtype, refusing truth values and integers over 0."""
    a, b = align(name, a, b)
    dtype = a.dtype if hasattr(a, "dtype") else b.dtype
    if dtype == bool_:
        raise DtypeError(f"{name}: takes integers and floats, not bool; cast with .int() first")
    if dtype not in FLOATS and (isinstance(a, int) or a.size) and _has_zero(b):
        raise ZeroDivisionError(f"{name}: an integer is divided by 0")
    return a, b


def remainder(a: Any, b: Any) -> Any:
    """Return a - floor(a / b) * b, which has the sign of b; its gradient by b is -floor(a / b).

    Raises:
        ZeroDivisionError: If integers are divided by 0; floats give NaN.
    """
    check_operands("remainder", a, b)
    return _Remainder.apply(a, b)


def floor_divide(a: Any, b: Any) -> Any:
    """Return a / b rounded down; it has no derivative.

    Raises:
        ZeroDivisionError: If integers are divided by 0; floats give an infinity or NaN.
    """
    check_operands("floor_divide", a, b)
    return _FloorDivide.apply(a, b)
