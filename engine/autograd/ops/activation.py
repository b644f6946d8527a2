"""Activations and dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import as_float, check_float, check_not_bool, wide
from gradmesh.engine.backend import (
    Array,
    Generator,
    array_module,
    as_array,
    default_generator,
    device_of,
    is_plain,
    to_device,
    view_of,
)

_ROOT_2_BY_PI = math.sqrt(2.0 / math.pi)


class _Relu(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        if not x.dtype.num:
            check_not_bool("relu", x)
        out = array_module(x).maximum(x, x.dtype.type(0))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        out = ctx.saved_tensors[0]
        if is_plain(grad) and grad.flags.c_contiguous and out.flags.c_contiguous:
            masked = np.empty(out.shape, dtype=grad.dtype)
            kernels.fused.relu_select(grad.reshape(-1), out.reshape(-1), view_of(masked, -1))
            return masked
        return array_module(grad).where(out <= 0, grad.dtype.type(0), grad)


class _LeakyRelu(Function):
    __slots__ = ("slope",)

    @staticmethod
    def forward(ctx: Any, x: Array, slope: float) -> Array:
        check_float("leaky_relu", x)
        ctx.slope = slope
        ctx.save_for_backward(x)
        return array_module(x).where(x > 0, x, x * x.dtype.type(slope))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        return array_module(x).where(x > 0, grad, grad * grad.dtype.type(ctx.slope)), None


class _Sigmoid(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = stable_sigmoid(as_float(x))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        (out,) = ctx.saved_tensors
        return grad * out * (1 - out)


class _Tanh(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = array_module(x).tanh(as_float(x))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        (out,) = ctx.saved_tensors
        return grad * (1 - out * out)


class _Silu(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        check_float("silu", x)
        gate = stable_sigmoid(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        x, gate = ctx.saved_tensors
        return grad * gate * (1 + x * (1 - gate))


class _Gelu(Function):
    """Multiply by the normal distribution function, exact or by the tanh formula."""

    __slots__ = ("tanh",)

    @staticmethod
    def forward(ctx: Any, x: Array, tanh: bool) -> Array:
        check_float("gelu", x)
        ctx.tanh = tanh
        ctx.save_for_backward(x)
        dtype, x = x.dtype, wide(x)
        if tanh:
            inner = _ROOT_2_BY_PI * (x + 0.044715 * x**3)
            out = 0.5 * x * (1 + array_module(x).tanh(inner))
        else:
            out = 0.5 * x * (1 + kernels.erf(x * x.dtype.type(math.sqrt(0.5))))
        return out.astype(dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        xp = array_module(x)
        dtype, x = x.dtype, wide(x)
        if ctx.tanh:
            t = xp.tanh(_ROOT_2_BY_PI * (x + 0.044715 * x**3))
            slope = _ROOT_2_BY_PI * (1 + 3 * 0.044715 * x * x)
            out = grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
            return out.astype(dtype, copy=False), None
        cdf = 0.5 * (1 + kernels.erf(x * x.dtype.type(math.sqrt(0.5))))
        density = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        return (grad * (cdf + x * density)).astype(dtype, copy=False), None


def stable_sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) for arrays; 0 where the power overflows."""
    # Half of 1 + tanh(x / 2) would be quicker, and lose the digits of small probabilities.
    xp = array_module(x)
    out = -wide(x)
    with np.errstate(over="ignore"):
        out = xp.exp(out)
    out += 1
    return xp.reciprocal(out).astype(x.dtype, copy=False)


def relu(x: Any) -> Any:
    """Return max(x, 0); its gradient at 0 is 0."""
    return _Relu.apply(x)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """Return x where it is positive, else x times negative_slope."""
    return _LeakyRelu.apply(x, negative_slope)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return _Sigmoid.apply(x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x."""
    return _Tanh.apply(x)


def silu(x: Any) -> Any:
    """Return x * sigmoid(x)."""
    return _Silu.apply(x)


def gelu(x: Any, approximate: str = "none") -> Any:
    """Return x times the cumulative normal distribution function of x.

    Args:
        x: A float tensor.
        approximate: `"none"` for the exact function, `"tanh"` for the usual approximation.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}; use 'none' or 'tanh'")
    return _Gelu.apply(x, approximate == "tanh")


class _Dropout(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array, rate: float, generator: Generator) -> Array:
        kept = generator.random(tuple(x.shape)) >= rate
        scale = as_array(kept.astype(x.dtype))
        if rate < 1:
            scale *= x.dtype.type(1 / (1 - rate))
        mask = to_device(scale, device_of(x))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return grad * ctx.saved_tensors[0], None, None


def dropout(
    x: Any, p: float = 0.5, training: bool = True, generator: Generator | None = None
) -> Any:
    """Set elements to 0 with probability p and scale the others by 1 / (1 - p)."""
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability lies in [0, 1]")
    if not training or p == 0:
        return x
    return _Dropout.apply(x, p, generator or default_generator())
