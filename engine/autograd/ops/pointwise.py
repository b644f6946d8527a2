"""Functions of one operand, element by element."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import Array, array_module


class _Exp(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = array_module(x).exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad * ctx.saved_tensors[0]


class _Log(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).log(x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad / ctx.saved_tensors[0]


class _Log1p(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).log1p(x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad / (1 + ctx.saved_tensors[0])


class _Sin(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).sin(x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad * array_module(grad).cos(ctx.saved_tensors[0])


class _Cos(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).cos(x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return -grad * array_module(grad).sin(ctx.saved_tensors[0])


class _Sqrt(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = array_module(x).sqrt(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad / (2 * ctx.saved_tensors[0])


class _Abs(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).abs(x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad * array_module(grad).sign(ctx.saved_tensors[0])


class _Clamp(Function):
    __slots__ = ("high", "low")

    @staticmethod
    def forward(ctx: Any, x: Array, low: float | None, high: float | None) -> Array:
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)
        return array_module(x).clip(x, low, high)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        inside = array_module(x).ones(x.shape, dtype=bool)
        if ctx.low is not None:
            inside &= x >= ctx.low
        if ctx.high is not None:
            inside &= x <= ctx.high
        return grad * inside, None, None


def exp(x: Any) -> Any:
    """Return e to the power of x."""
    return _Exp.apply(x)


def log(x: Any) -> Any:
    """Return the natural logarithm of x."""
    return _Log.apply(x)


def log1p(x: Any) -> Any:
    """Return the natural logarithm of 1 + x, exact for small x."""
    return _Log1p.apply(x)


def sin(x: Any) -> Any:
    """Return the sine of x."""
    return _Sin.apply(x)


def cos(x: Any) -> Any:
    """Return the cosine of x."""
    return _Cos.apply(x)


def sqrt(x: Any) -> Any:
    """Return the square root of x."""
    return _Sqrt.apply(x)


def abs(x: Any) -> Any:
    """Return |x|; its gradient at 0 is 0."""
    return _Abs.apply(x)


def clamp(x: Any, min: float | None = None, max: float | None = None) -> Any:
    """Return x, limited to [min, max]; the gradient is 0 outside."""
    return _Clamp.apply(x, min, max)
