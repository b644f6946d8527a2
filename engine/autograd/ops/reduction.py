"""Reductions along axes: sums, products, means, variances, extremes, running sums."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import axes_of, axis_of
from gradmesh.engine.autograd.ops.arithmetic import maximum, minimum
from gradmesh.engine.autograd.ops.floats import check_float, total, wide
from gradmesh.engine.backend import Array, DimError, ShapeError, array_module, as_array
from gradmesh.engine.backend.dtype import FLOATS, float32, float64, int64


class Extremes(NamedTuple):
    """The extreme elements along an axis, and their indices."""

    values: Any
    indices: Any


def spread(grad: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return a view of a reduced gradient in the shape before the reduction."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return array_module(grad).broadcast_to(grad.reshape(kept), shape)


class _Sum(Function):
    __slots__ = ("axes", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: Any, keepdim: bool) -> Array:
        ctx.shape, ctx.axes = x.shape, axes_of("sum", dim, x.ndim)
        if x.dtype.num < float32.num:
            return x.sum(axis=ctx.axes, keepdims=keepdim, dtype=int64)
        return total(x, ctx.axes, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return spread(grad, ctx.shape, ctx.axes), None, None


class _Mean(Function):
    __slots__ = ("axes", "count", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: Any, keepdim: bool) -> Array:
        check_float("mean", x)
        ctx.shape, ctx.axes = x.shape, axes_of("mean", dim, x.ndim)
        ctx.count = math.prod(x.shape[a] for a in ctx.axes)
        given = wide(x)
        found = total(given, ctx.axes, keepdim)
        if not ctx.count:
            return (found + math.nan).astype(x.dtype)
        mean = found / array_module(x).asarray(ctx.count, dtype=given.dtype)
        return mean if given is x else mean.astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        scaled = grad
        if ctx.count:
            # Half precision cannot count far.
            given = wide(grad)
            scaled = (given / given.dtype.type(ctx.count)).astype(grad.dtype, copy=False)
        return spread(scaled, ctx.shape, ctx.axes), None, None


class _Extremum(Function):
    """Take the extreme element of all; equals share the gradient."""

    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array, largest: bool) -> Any:
        if not x.size:
            name = "max" if largest else "min"
            raise ShapeError(f"{name}: a tensor of shape {tuple(x.shape)} has no element; give dim")
        out = x.max() if largest else x.min()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, out = ctx.saved_tensors
        # NaN is not equal to itself.
        where = x == out if out == out else array_module(x).isnan(x)
        given = wide(grad)
        share = (given / given.dtype.type(int(where.sum()))).astype(grad.dtype, copy=False)
        return array_module(x).where(where, share, grad.dtype.type(0)), None


class _AtPositions(Function):
    """Take one element along an axis, at a known position; it gets the gradient."""

    __slots__ = ("axis", "keepdim", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, positions: Array, axis: int, keepdim: bool) -> Array:
        ctx.shape, ctx.axis, ctx.keepdim = x.shape, axis, keepdim
        ctx.save_for_backward(positions)
        xp = array_module(x)
        kept = positions if keepdim else xp.expand_dims(positions, axis)
        out = xp.take_along_axis(x, kept, axis=axis)
        return out if keepdim else out.squeeze(axis=axis)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (positions,) = ctx.saved_tensors
        xp = array_module(grad)
        out = xp.zeros(ctx.shape, dtype=grad.dtype)
        if not ctx.keepdim:
            grad, positions = xp.expand_dims(grad, ctx.axis), xp.expand_dims(positions, ctx.axis)
        xp.put_along_axis(out, positions, grad, axis=ctx.axis)
        return out, None, None, None


class _Var(Function):
    """Take the variance, or its root."""

    __slots__ = ("axes", "count", "dtype", "root")

    @staticmethod
    def forward(
        ctx: Any, x: Array, dim: Any, correction: float, keepdim: bool, root: bool
    ) -> Array:
        check_float("std" if root else "var", x)
        ctx.axes, ctx.root = axes_of("std" if root else "var", dim, x.ndim), root
        ctx.dtype = x.dtype
        size = math.prod(x.shape[a] for a in ctx.axes)
        ctx.count = size - correction if size > correction else 0
        given = wide(x)
        # Of too few samples the variance is 0 / 0 or x / 0, NaN or infinite as in torch.
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total(given, ctx.axes, True) / given.dtype.type(size)
            centred = given - mean
            squares = total(centred * centred, ctx.axes, keepdim)
            out = squares / given.dtype.type(ctx.count)
        if root:
            out = array_module(x).sqrt(out)
        ctx.save_for_backward(centred, out if root else None)
        return out.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        centred, out = ctx.saved_tensors
        xp = array_module(grad)
        if ctx.root:
            # The deviation of a constant has no slope: 0 is its subgradient.
            flat = out == 0
            grad = xp.where(
                flat, grad.dtype.type(0), grad / xp.where(flat, out.dtype.type(1), 2 * out)
            )
        given = spread(grad, centred.shape, ctx.axes)
        if ctx.count:
            found = centred * (given * given.dtype.type(2 / ctx.count))
        else:
            found = given * xp.where(centred == 0, given.dtype.type(math.nan), math.inf)
        return found.astype(ctx.dtype, copy=False), None, None, None, None


class _CumSum(Function):
    __slots__ = ("axis",)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: int) -> Array:
        ctx.axis = axis
        if x.dtype not in FLOATS:
            return array_module(x).cumsum(x, axis=axis, dtype=int64)
        return _running_sums(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        xp = array_module(grad)
        return xp.flip(_running_sums(xp.flip(grad, ctx.axis), ctx.axis), ctx.axis), None


def _running_sums(x: Array, axis: int) -> Array:
    """Return running sums of floats, each rounded once: errors would add up, too."""
    sums = array_module(x).cumsum(wide(x), axis=axis, dtype=float64)
    return sums.astype(x.dtype, copy=False)


def sum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the sum over all elements or over some axes; of integers as int64."""
    return _Sum.apply(x, dim, keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the mean over all elements or over some axes."""
    return _Mean.apply(x, dim, keepdim)


def var(x: Any, dim: Any = None, correction: float = 1, keepdim: bool = False) -> Any:
    """Return the variance; it is divided by n - correction, with True and False as 1 and 0."""
    if isinstance(dim, bool):
        dim, correction = None, dim
    return _Var.apply(x, dim, correction, keepdim, False)


def std(x: Any, dim: Any = None, correction: float = 1, keepdim: bool = False) -> Any:
    """Return the standard deviation; arguments as in `var`."""
    if isinstance(dim, bool):
        dim, correction = None, dim
    return _Var.apply(x, dim, correction, keepdim, True)


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest element, or (values, indices) of the largest along an axis.

    Args:
        x: A tensor.
        dim: None for all; an axis for (values, indices); a tensor for `maximum` of the two.
        keepdim: Whether the axis stays, with length 1.
    """
    if isinstance(dim, tensor_module.Tensor):
        return maximum(x, dim)
    return _Extremum.apply(x, True) if dim is None else _along("max", x, dim, keepdim)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest element, or (values, indices) along an axis; arguments as in `max`."""
    if isinstance(dim, tensor_module.Tensor):
        return minimum(x, dim)
    return _Extremum.apply(x, False) if dim is None else _along("min", x, dim, keepdim)


def _along(name: str, x: Any, dim: int, keepdim: bool) -> Extremes:
    positions = tensor_module.Tensor(arg_extreme(name, x, dim, keepdim))
    if not x.ndim:
        return Extremes(x.clone(), positions)
    # Positions as a tensor, so that a change of them is detected in backward.
    return Extremes(_AtPositions.apply(x, positions, dim % x.ndim, keepdim), positions)


def arg_extreme(name: str, x: Any, dim: int | None, keepdim: bool) -> Array:
    """Return the positions of the extreme elements, along an axis or in the flattened tensor.

    Raises:
        DimError: If the axis is not there, or is empty.
    """
    if dim is None:
        if not x.numel():
            raise DimError(f"{name}: a tensor of shape {tuple(x.shape)} has no element; give dim")
        flat = x.data.reshape(-1)
        found = as_array(flat.argmin() if name in ("min", "argmin") else flat.argmax())
        return found.reshape((1,) * x.ndim) if keepdim else found
    axis = axis_of(name, dim, x.ndim)
    if not x.ndim:
        return as_array(array_module(x.data).zeros((), dtype="int64"))
    if not x.shape[axis]:
        raise DimError(f"{name}: axis {dim} of shape {tuple(x.shape)} is empty")
    small = name in ("min", "argmin")
    found = as_array(x.data.argmin(axis=axis) if small else x.data.argmax(axis=axis))
    return array_module(found).expand_dims(found, axis) if keepdim else found


def cumsum(x: Any, dim: int) -> Any:
    """Return the running sums along an axis; of integers as int64."""
    axis = axis_of("cumsum", dim, x.ndim)
    return _CumSum.apply(x, axis) if x.ndim else sum(x)


class _Prod(Function):
    __slots__ = ("axis",)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: int | None, keepdim: bool) -> Array:
        ctx.axis = axis
        ctx.save_for_backward(x)
        dtype = int64 if x.dtype not in FLOATS else _product_dtype(x.dtype)
        out = array_module(x).prod(x, axis=axis, dtype=dtype, keepdims=keepdim)
        return out if x.dtype not in FLOATS else out.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        xp = array_module(x)
        rows = x.reshape(-1) if ctx.axis is None else xp.moveaxis(x, ctx.axis, -1)
        others = _others(rows.astype(_product_dtype(x.dtype), copy=False))
        out = others * grad.reshape(*rows.shape[:-1], 1)
        out = out.reshape(x.shape) if ctx.axis is None else xp.moveaxis(out, -1, ctx.axis)
        return out.astype(x.dtype, copy=False), None, None


def _product_dtype(dtype: Any) -> Any:
    """Return the dtype to multiply in: halves lose too much, product by product."""
    return float32 if dtype.itemsize < 4 else dtype


def _others(x: Array) -> Array:
    """Return for each element the product of the others along the last axis.

    Not the whole product divided by the element: that has no value where the element is 0.
    """
    xp = array_module(x)
    out = xp.ones_like(x)
    out[..., 1:] = xp.cumprod(x[..., :-1], axis=-1)
    after = xp.cumprod(xp.flip(x[..., 1:], -1), axis=-1)
    out[..., :-1] *= xp.flip(after, -1)
    return out


def prod(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the product of all elements or along an axis; of integers in int64, of none 1."""
    axis = None if dim is None else axis_of("prod", dim, x.ndim)
    return _Prod.apply(x, axis if x.ndim else None, keepdim)
