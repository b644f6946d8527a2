"""Arithmetic of two operands, broadcasting as numpy does."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.broadcast import align, align_floats, spec, unbroadcast
from gradmesh.engine.backend import Array, array_module


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
        a, b = align("sub", a, b)
        return a - b

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
        out = x**y
        ctx.save_for_backward(a, b, out if ctx.needs_input_grad[1] else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        a, b, out = ctx.saved_tensors
        need_a, need_b = ctx.needs_input_grad
        grad_a = grad_b = None
        if need_a:
            grad_a = unbroadcast(grad * (b * a ** (b - 1)), ctx.a)
        if need_b:
            xp = array_module(grad)
            # 0**b is flat in b, where log(0) is not finite.
            safe = xp.where(xp.asarray(a) > 0, a, xp.ones_like(a))
            grad_b = unbroadcast(grad * out * xp.log(safe), ctx.b)
        return grad_a, grad_b


class _Extreme(Function):
    """Choose the larger (or smaller) of two; equal operands share the gradient."""

    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, largest: bool) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        x, y = align("maximum" if largest else "minimum", a, b)
        array = x if hasattr(x, "strides") else y
        xp = array_module(array)
        first = x > y if largest else x < y
        ctx.save_for_backward(first + (x == y) * array.dtype.type(0.5))
        return xp.maximum(x, y) if largest else xp.minimum(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (share,) = ctx.saved_tensors
        return (
            unbroadcast(grad * share, ctx.a) if ctx.needs_input_grad[0] else None,
            unbroadcast(grad * (1 - share), ctx.b) if ctx.needs_input_grad[1] else None,
            None,
        )


class _Where(Function):
    __slots__ = ("a", "b")

    @staticmethod
    def forward(ctx: Any, condition: Array, a: Any, b: Any) -> Array:
        ctx.a, ctx.b = spec(a), spec(b)
        ctx.save_for_backward(condition)
        a, b = align("where", a, b)
        return array_module(condition).where(condition, a, b)

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
    """Return a where the condition holds, else b."""
    return _Where.apply(condition, a, b)


def neg(a: Any) -> Any:
    """Return -a."""
    return _Neg.apply(a)
