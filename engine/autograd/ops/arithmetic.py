"""Arithmetic of two operands, broadcasting as numpy does."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import check_operands
from gradmesh.engine.autograd.ops.broadcast import (
    align,
    align_floats,
    as_number,
    check_shapes,
    filling,
    refuse_bools,
    spec,
    unbroadcast,
)
from gradmesh.engine.autograd.ops.floats import check_not_bool
from gradmesh.engine.backend import Array, DtypeError, array_module
from gradmesh.engine.backend.dtype import FLOATS, bool_, default_dtype
from gradmesh.engine.errors import GradientError


class _Add(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        a, b = align("add", a, b)
        return a + b

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        need_a, need_b = ctx.needs_input_grad
        return (
            unbroadcast(grad, ctx.a) if need_a else None,
            unbroadcast(grad, ctx.b) if need_b else None,
        )


class _Sub(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        x, y = align("sub", a, b)
        try:
            out = x - y
        except TypeError:
            refuse_bools("sub", a, b)
            raise
        if x is not a or y is not b:
            refuse_bools("sub", a, b)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        need_a, need_b = ctx.needs_input_grad
        return (
            unbroadcast(grad, ctx.a) if need_a else None,
            unbroadcast(-grad, ctx.b) if need_b else None,
        )


class _Mul(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        ctx.save_for_backward(
            a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None
        )
        a, b = align("mul", a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        a, b = ctx.saved_tensors
        need_a, need_b = ctx.needs_input_grad
        return (
            unbroadcast(grad * b, ctx.a) if need_a else None,
            unbroadcast(grad * a, ctx.b) if need_b else None,
        )


class _Div(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b)
        a, b = align_floats("div", a, b)
        return a / b

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        a, b = ctx.saved_tensors
        need_a, need_b = ctx.needs_input_grad
        scaled = grad / b
        return (
            unbroadcast(scaled, ctx.a) if need_a else None,
            unbroadcast(-scaled * (a / b), ctx.b) if need_b else None,
        )


class _Pow(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        x, y = align("pow", a, b)
        array = x if ctx.a is not None else y
        out = x**y if array.dtype.num >= 11 else _integer_power(array, x, y, b)
        ctx.save_for_backward(x, y, out if ctx.needs_input_grad[1] else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, y, out = ctx.saved_tensors
        need_a, need_b = ctx.needs_input_grad
        xp = array_module(grad)
        zero = grad.dtype.type(0)
        grad_a = grad_b = None
        if need_a and ctx.b is None:
            grad_a = grad * (y * x ** (y - 1)) if y else xp.zeros_like(grad)
        elif need_a:
            # x**0 is flat in x, where 0 * x**-1 is not finite at 0.
            flat = y == 0
            slope = y * x ** (xp.where(flat, grad.dtype.type(1), y) - 1)
            grad_a = xp.where(flat, zero, grad * slope)
        if need_b:
            # 0**y is flat in y, where log(0) is not finite.
            base = xp.asarray(x, dtype=out.dtype)
            flat = (base == 0) & (y >= 0)
            slope = out * xp.log(xp.where(flat, out.dtype.type(1), base))
            grad_b = grad * xp.where(flat, zero, slope)
        return (
            unbroadcast(grad_a, ctx.a) if need_a else None,
            unbroadcast(grad_b, ctx.b) if need_b else None,
        )


def _integer_power(array: Array, x: Any, y: Any, given: Any) -> Array:
    """Return x**y of integers; of a negative power what is left of 1 / x**-y, as torch does."""
    xp = array_module(array)
    if array.dtype == bool_:
        raise DtypeError("pow: does not take bool; use .int() or .float() first")
    if isinstance(given, int):
        if given < 0:
            raise DtypeError(
                f"pow: integers to the power of {given} are not integers; use .float()"
            )
        return x**y
    below = y < 0
    out = x ** xp.where(below, y.dtype.type(0), y)
    one = out.dtype.type(1)
    # asarray, because x may be a number: cupy takes no Python bool for a condition.
    inverse = xp.where(xp.asarray(x == 1), one, out.dtype.type(0))
    if out.dtype.kind == "i":
        inverse = xp.where(xp.asarray(x == -1), xp.where(y % 2 == 0, one, -one), inverse)
    return xp.where(below, inverse, out)


class _Extreme(Function):
    """Choose the larger (or smaller) of two; equal operands share the gradient."""

    __slots__ = ("a", "b", "largest")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, largest: bool) -> Array:
        ctx.a, ctx.b, ctx.largest = spec(a), spec(b), largest
        x, y = align("maximum" if largest else "minimum", a, b)
        ctx.save_for_backward(x, y)
        xp = array_module(x if ctx.a is not None else y)
        return xp.maximum(x, y) if largest else xp.minimum(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, y = ctx.saved_tensors
        if not ctx.largest:
            # With operands swapped, the comparisons below find the smaller one.
            x, y = y, x
        # Beside NaN neither is smaller: both get the gradient, as in torch.
        where = array_module(grad).where
        zero = grad.dtype.type(0)
        shared = where(x == y, grad * grad.dtype.type(0.5), grad)
        of_x, of_y = where(x < y, zero, shared), where(y < x, zero, shared)
        return (
            unbroadcast(of_x, ctx.a) if ctx.needs_input_grad[0] else None,
            unbroadcast(of_y, ctx.b) if ctx.needs_input_grad[1] else None,
            None,
        )


class _Where(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, condition: Array, a: Any, b: Any) -> Array:
        if condition.dtype != bool_:
            raise DtypeError(f"where: a condition is bool, not {condition.dtype}")
        ctx.a, ctx.b = spec(a), spec(b)
        ctx.save_for_backward(condition)
        xp = array_module(condition)
        if ctx.a is None and ctx.b is None:
            a = xp.asarray(a, dtype=default_dtype(a))
        x, y = align("where", a, b)
        for given, operand in ((a, x), (b, y)):
            check_shapes("where", condition.shape, getattr(operand, "shape", ()))
            if isinstance(operand, int) and operand != given:
                # It was wrapped around, which torch does for negative ones in uint8 only.
                filling("where", given, (y if operand is x else x).dtype)
        return xp.where(condition, x, y)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (condition,) = ctx.saved_tensors
        zero = grad.dtype.type(0)
        where = array_module(grad).where
        return (
            None,
            unbroadcast(where(condition, grad, zero), ctx.a) if ctx.needs_input_grad[1] else None,
            unbroadcast(where(condition, zero, grad), ctx.b) if ctx.needs_input_grad[2] else None,
        )


class _Neg(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, a: Array) -> Array:
        check_not_bool("neg", a)
        return -a

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return -grad


def add(a: Any, b: Any) -> Any:
    """Return a + b."""
    return _Add.apply(a, b)


def sub(a: Any, b: Any) -> Any:
    """Return a - b."""
    return _Sub.apply(a, b)


def mul(a: Any, b: Any) -> Any:
    """Return a * b."""
    return _Mul.apply(a, b)


def div(a: Any, b: Any) -> Any:
    """Return a / b, in floating point."""
    return _Div.apply(a, b)


def pow(a: Any, b: Any) -> Any:
    """Return a to the power of b."""
    return _Pow.apply(a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of a and b, element by element; equal ones share the gradient."""
    return _Extreme.apply(a, b, True)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of a and b, element by element; equal ones share the gradient."""
    return _Extreme.apply(a, b, False)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return elements of a where the condition is true, else of b."""
    return _Where.apply(condition, as_number(a), as_number(b))


def neg(a: Any) -> Any:
    """Return -a."""
    return _Neg.apply(a)


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
    """Return two operands in their common dtype, refusing bools and integers divided by 0."""
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
    """Return a / b rounded down; not differentiable.

    Raises:
        ZeroDivisionError: If integers are divided by 0; floats give an infinity or NaN.
    """
    check_operands("floor_divide", a, b)
    return _FloorDivide.apply(a, b)
