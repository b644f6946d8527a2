"""Functions of one operand, element by element."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.broadcast import as_number, check_shapes, spec, unbroadcast
from gradmesh.engine.autograd.ops.floats import as_float, check_not_bool
from gradmesh.engine.backend import Array, array_module
from gradmesh.engine.backend.dtype import result_dtype


class _Exp(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = array_module(x).exp(as_float(x))
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
        return array_module(x).log(as_float(x))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad / ctx.saved_tensors[0]


class _Log1p(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).log1p(as_float(x))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad / (1 + ctx.saved_tensors[0])


class _Sin(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).sin(as_float(x))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad * array_module(grad).cos(ctx.saved_tensors[0])


class _Cos(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return array_module(x).cos(as_float(x))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return -grad * array_module(grad).sin(ctx.saved_tensors[0])


class _Erf(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return kernels.erf(as_float(x))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        (x,) = ctx.saved_tensors
        return grad * array_module(x).exp(-x * x) * x.dtype.type(2 / math.sqrt(math.pi))


class _Sqrt(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = array_module(x).sqrt(as_float(x))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad / (2 * ctx.saved_tensors[0])


class _Abs(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        check_not_bool("abs", x)
        ctx.save_for_backward(x)
        return array_module(x).abs(x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        return grad * array_module(grad).sign(ctx.saved_tensors[0])


class _Clamp(Function):
    """Limit to numbers."""

    __slots__ = ("high", "low")

    @staticmethod
    def forward(ctx: Any, x: Array, low: float | None, high: float | None) -> Array:
        if not 11 <= x.dtype.num <= 12:
            dtype = result_dtype(x, *[bound for bound in (low, high) if bound is not None])
            x = x.astype(dtype, copy=False)
            low, high = _within(low, dtype), _within(high, dtype)
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)
        out = array_module(x).clip(x, low, high)
        # Of bfloat16 clip makes float32 where the bounds cross.
        return out if out.dtype is x.dtype else out.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        xp = array_module(x)
        inside = xp.ones(x.shape, dtype=bool)
        if ctx.low is not None:
            inside &= x >= ctx.low
        if ctx.high is not None:
            inside &= x <= ctx.high
        return xp.where(inside, grad, grad.dtype.type(0)), None, None


def _number_within(part: Any, dtype: Any) -> Any:
    return _within(part, dtype) if isinstance(part, (int, float)) else part


def _within(bound: Any, dtype: Any) -> Any:
    """Return a bound that leaves the dtype alone; beyond the ends of integers nothing lies."""
    if bound is None or 11 <= dtype.num <= 12:
        return bound
    if dtype.kind not in "iu":
        return dtype.type(bound)
    ends = np.iinfo(dtype)
    return builtins.min(builtins.max(bound, ends.min), ends.max)


class _ClampBetween(Function):
    """Limit to tensors; the gradient goes to the bound where the bound is the result."""

    __slots__ = ("specs",)

    @staticmethod
    def forward(ctx: Any, x: Array, low: Any, high: Any) -> Array:
        ctx.specs = [None if part is None else spec(part) for part in (x, low, high)]
        xp = array_module(x)
        dtype = result_dtype(*[part for part in (x, low, high) if part is not None])
        x, low, high = [
            None if part is None else xp.asarray(_number_within(part, dtype), dtype=dtype)
            for part in (x, low, high)
        ]
        ctx.save_for_backward(x, low, high)
        out = x
        if low is not None:
            check_shapes("clamp", out.shape, low.shape)
            out = xp.maximum(out, low)
        if high is not None:
            check_shapes("clamp", out.shape, high.shape)
            out = xp.minimum(out, high)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, low, high = ctx.saved_tensors
        xp = array_module(grad)
        inside = xp.ones(grad.shape, dtype=bool)
        is_low = is_high = None
        if low is not None:
            inside &= x >= low
            is_low = x < low
        if high is not None:
            inside &= x <= high
            is_high = x > high
        if is_low is not None and is_high is not None:
            # The upper bound wins where the bounds cross.
            is_low = is_low & (low < high)
            is_high = is_high | (high < low)
        return tuple(
            unbroadcast(xp.where(mask, grad, grad.dtype.type(0)), like) if needed else None
            for mask, like, needed in zip(
                (inside, is_low, is_high), ctx.specs, ctx.needs_input_grad, strict=True
            )
        )


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


def erf(x: Any) -> Any:
    """Return the error function of x; of integers in float32."""
    return _Erf.apply(x)


def sqrt(x: Any) -> Any:
    """Return the square root of x."""
    return _Sqrt.apply(x)


def abs(x: Any) -> Any:
    """Return |x|; its gradient at 0 is 0."""
    return _Abs.apply(x)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """Return x, limited to [min, max]; outside, the gradient goes to the bound.

    Args:
        x: A tensor.
        min: A number, a tensor, or None for no lower bound.
        max: A number, a tensor, or None for no upper bound; it wins where the bounds cross.
    """
    if min is None and max is None:
        raise ValueError("clamp: at least one of min and max must be given")
    min, max = as_number(min), as_number(max)
    if hasattr(min, "shape") or hasattr(max, "shape"):
        return _ClampBetween.apply(x, min, max)
    return _Clamp.apply(x, min, max)
