"""Gather and scatter by an index along an axis, and selection by masks."""

from __future__ import annotations

import math
from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import axis_of
from gradmesh.engine.autograd.ops.broadcast import (
    as_number,
    broadcast_shape,
    check_shapes,
    filling,
    spec,
    unbroadcast,
)
from gradmesh.engine.autograd.ops.indexing import getitem
from gradmesh.engine.autograd.ops.rows import scatter_add as sum_into
from gradmesh.engine.autograd.ops.shape import broadcast_to
from gradmesh.engine.backend import Array, DimError, DtypeError, ShapeError, array_module
from gradmesh.engine.backend.dtype import bool_


class _Gather(Function):
    __slots__ = ("axis", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, axis: int, index: Array) -> Array:
        if index.dtype.kind not in "iu":
            raise DtypeError(f"gather: an index is of integers, not {index.dtype}")
        if index.ndim != x.ndim:
            raise ShapeError(f"gather: an index of {index.ndim} axes for a tensor of {x.ndim}")
        others = [i for i in range(x.ndim) if i != axis]
        if index.size and any(index.shape[i] > x.shape[i] for i in others):
            raise ShapeError(
                f"gather: an index of {tuple(index.shape)} for a tensor of {tuple(x.shape)}; it "
                f"may be longer along axis {axis} only"
            )
        ctx.shape, ctx.axis = x.shape, axis
        length = x.shape[axis]
        if index.size and (int(index.min()) < 0 or int(index.max()) >= length):
            raise IndexError(f"gather: an index is out of range for axis {axis} of length {length}")
        ctx.save_for_backward(index)
        if not index.size:
            return array_module(x).empty(index.shape, dtype=x.dtype)
        # torch takes an index shorter than x along the other axes; the rest of x is not read.
        return array_module(x).take_along_axis(_cut(x, index, axis), index, axis=axis)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (index,) = ctx.saved_tensors
        xp = array_module(grad)
        size = math.prod(ctx.shape)
        out = xp.zeros((size, 1), dtype=grad.dtype)
        if not index.size:
            return out.reshape(ctx.shape), None, None
        positions = xp.arange(size).reshape(ctx.shape)
        flat = xp.take_along_axis(_cut(positions, index, ctx.axis), index, axis=ctx.axis).reshape(
            -1
        )
        sum_into(out, flat, grad.reshape(-1, 1))
        return out.reshape(ctx.shape), None, None


def _cut(x: Array, index: Array, axis: int) -> Array:
    return x[tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(index.shape))]


class _ScatterAdd(Function):
    __slots__ = ("shape",)

    @staticmethod
    def forward(ctx: Any, x: Array, src: Array, axis: int, index: Array) -> Array:
        _check_scatter(x, src, axis, index)
        positions = _positions(x, axis, index)
        ctx.shape = src.shape
        ctx.save_for_backward(positions)
        out = x.copy().reshape(-1, 1)
        if positions.size:
            sum_into(out, positions.reshape(-1), src[_covered(positions)].reshape(-1, 1))
        return out.reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (positions,) = ctx.saved_tensors
        grad_src = None
        if ctx.needs_input_grad[1]:
            grad_src = array_module(grad).zeros(ctx.shape, dtype=grad.dtype)
            if positions.size:
                grad_src[_covered(positions)] = grad.reshape(-1)[positions]
        return grad, grad_src, None, None


def _covered(index: Array) -> tuple[slice, ...]:
    """Return the part of src that the index covers; torch leaves the rest alone."""
    return tuple(slice(0, n) for n in index.shape)


def _positions(x: Array, axis: int, index: Array) -> Array:
    """Return for each element of the index its position in x, counted in row-major order."""
    xp = array_module(index)
    out = xp.zeros(index.shape, dtype="int64")
    step = 1
    for position in reversed(range(x.ndim)):
        along = [1] * position + [-1] + [1] * (x.ndim - position - 1)
        at = index if position == axis else xp.arange(index.shape[position]).reshape(along)
        out += at.astype("int64", copy=False) * step
        step *= x.shape[position]
    return out


def _check_scatter(x: Array, src: Array, axis: int, index: Array) -> None:
    if index.dtype.kind not in "iu":
        raise DtypeError(f"scatter_add: an index is of integers, not {index.dtype}")
    if x.dtype != src.dtype:
        raise DtypeError(f"scatter_add: dtypes {x.dtype} and {src.dtype} differ; cast one of them")
    shapes = tuple(x.shape), tuple(src.shape), tuple(index.shape)
    if not x.ndim == src.ndim == index.ndim:
        raise ShapeError(
            f"scatter_add: tensor {shapes[0]}, src {shapes[1]} and index {shapes[2]} differ in axes"
        )
    # As in torch, an index without elements may have any lengths.
    for position, length in enumerate(index.shape if index.size else ()):
        if length > src.shape[position] or (position != axis and length > x.shape[position]):
            raise ShapeError(
                f"scatter_add: index {shapes[2]} is larger than src {shapes[1]}, "
                f"or than tensor {shapes[0]} apart from axis {axis}"
            )
    limit = x.shape[axis] if x.ndim else 1
    if bool(((index < 0) | (index >= limit)).any()):
        raise IndexError(f"scatter_add: an index is out of range for axis {axis} of length {limit}")


class _MaskedFill(Function):
    __slots__ = ("like", "of_value")

    @staticmethod
    def forward(ctx: Any, x: Array, mask: Array, value: Any) -> Array:
        if mask.dtype != bool_:
            raise DtypeError(f"masked_fill: a mask is bool, not {mask.dtype}")
        if getattr(value, "shape", ()) != ():
            raise ShapeError(
                f"masked_fill: the value has shape {tuple(value.shape)}, it must be ()"
            )
        check_shapes("masked_fill", x.shape, mask.shape)
        ctx.like, ctx.of_value = spec(x), spec(value)
        ctx.save_for_backward(mask)
        is_array = ctx.of_value is not None
        fill = value.astype(x.dtype) if is_array else filling("masked_fill", value, x.dtype)
        return array_module(x).where(mask, fill, x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (mask,) = ctx.saved_tensors
        where, zero = array_module(grad).where, grad.dtype.type(0)
        of_x, _, of_value = ctx.needs_input_grad
        return (
            unbroadcast(where(mask, zero, grad), ctx.like) if of_x else None,
            None,
            unbroadcast(where(mask, grad, zero), ctx.of_value) if of_value else None,
        )


def gather(x: Any, dim: int, index: Any) -> Any:
    """Return elements of x at the positions along an axis that an index gives."""
    axis = axis_of("gather", dim, x.ndim)
    if not x.ndim:
        return gather(x.reshape(1), 0, index.reshape(-1)).reshape(index.shape)
    return _Gather.apply(x, axis, index)


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """Return x with the elements of src added at indices along an axis; repeated ones add up.

    Args:
        x: A tensor.
        dim: The axis that the index counts along.
        index: Integers, no longer than src along any axis, nor than x along the other axes.
        src: What is added, of x's dtype.
    """
    axis = axis_of("scatter_add", dim, x.ndim)
    return _ScatterAdd.apply(x, src, axis, index)


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Return x with a value, a number or a scalar tensor, where the mask is true."""
    return _MaskedFill.apply(x, mask, as_number(value))


def masked_select(x: Any, mask: Any) -> Any:
    """Return the elements of x where the mask is true, in row-major order, along one axis.

    The two broadcast.

    Raises:
        DtypeError: If the mask is not bool.
        ShapeError: If the shapes do not broadcast.
    """
    if mask.dtype != bool_:
        raise DtypeError(f"masked_select: a mask is of bool, not {mask.dtype}")
    shape = broadcast_shape("masked_select", x.shape, mask.shape)
    x = x if x.shape == shape else broadcast_to(x, shape)
    return getitem(x, mask if mask.shape == shape else broadcast_to(mask, shape))


def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    """Split x into at most `chunks` pieces along an axis, all but the last of equal length."""
    if not x.ndim:
        raise ShapeError("chunk: a tensor without axes has no pieces")
    if chunks < 1:
        raise ShapeError(f"chunk: {chunks} pieces; one is the least")
    length = x.shape[axis_of("chunk", dim, x.ndim)]
    return x.split(-(-length // chunks) if length else [0] * chunks, dim)


def unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return the slices of x along an axis, without that axis."""
    if not x.ndim:
        raise DimError("unbind: a tensor without axes has no slices")
    if not x.shape[axis_of("unbind", dim, x.ndim)]:
        return ()
    return tuple(part.squeeze(dim) for part in x.split(1, dim))
