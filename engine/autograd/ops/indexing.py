"""Indexing, joining and splitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import axis_of
from gradmesh.engine.autograd.ops.rows import scatter_add
from gradmesh.engine.backend import Array, ShapeError, array_module
from gradmesh.engine.backend.dtype import bool_, result_dtype, uint8

_BASIC = (int, slice, type(None), type(Ellipsis))


class _View(Function):
    """Index with integers, slices, None and Ellipsis: the result is a view."""

    __slots__ = ("index", "shape")
    is_view = True

    @staticmethod
    def forward(ctx: Any, x: Array, index: Any) -> Array:
        ctx.index, ctx.shape = index, x.shape
        # A trailing Ellipsis makes numpy return an array, not a scalar, for a full index.
        return x[index if Ellipsis in index else (*index, ...)]

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        out = array_module(grad).zeros(ctx.shape, dtype=grad.dtype)
        out[ctx.index] = grad
        return out, None


class _Pick(Function):
    """Index with arrays; repeated positions add up, in order."""

    __slots__ = ("index", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, index: Any) -> Array:
        ctx.index = own_index(index) if ctx.needs_input_grad[0] else None
        ctx.shape = x.shape
        return x[index]

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        xp = array_module(grad)
        size = math.prod(ctx.shape)
        out = xp.zeros((size, 1), dtype=grad.dtype)
        positions = xp.arange(size).reshape(ctx.shape)[ctx.index]
        scatter_add(out, positions.reshape(-1), grad.reshape(-1, 1))
        return out.reshape(ctx.shape), None


class _Cat(Function):
    __slots__ = ("axis", "specs")

    @staticmethod
    def forward(ctx: Any, dim: int, *arrays: Array) -> Array:
        first = arrays[0]
        ndim, dtype = first.ndim, first.dtype
        is_alike = -ndim <= dim < ndim
        ctx.specs = specs = []
        for a in arrays:
            specs.append((a.shape, a.dtype))
            if a.dtype is not dtype or a.ndim != ndim:
                is_alike = False
        ctx.axis = dim % (ndim or 1)
        if not is_alike:
            arrays, ctx.axis = _alike(dim, arrays)
        try:
            return array_module(first).concatenate(arrays, axis=ctx.axis)
        except ValueError as error:
            shapes = ", ".join(str(tuple(a.shape)) for a in arrays)
            raise ShapeError(f"cat: shapes {shapes} do not fit along axis {dim}") from error

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        parts: list[Any] = [None]
        start = 0
        index: list[Any] = [slice(None)] * grad.ndim
        for (shape, dtype), needed in zip(ctx.specs, ctx.needs_input_grad[1:], strict=True):
            if len(shape) != grad.ndim:
                parts.append(array_module(grad).zeros(shape, dtype=dtype))
                continue
            length = shape[ctx.axis]
            index[ctx.axis] = slice(start, start + length)
            part = grad[tuple(index)] if needed else None
            parts.append(part if part is None or part.dtype == dtype else part.astype(dtype))
            start += length
        return tuple(parts)


def _alike(dim: int, arrays: tuple[Array, ...]) -> tuple[tuple[Array, ...], int]:
    """Return arrays of one dtype, without those of shape (0,) that fit anywhere, and the axis."""
    if any(not a.ndim for a in arrays):
        raise ShapeError("cat: a tensor without axes cannot be joined; use stack")
    kept = [a for a in arrays if a.shape != (0,)] or list(arrays)
    axis = axis_of("cat", dim, max(a.ndim for a in kept)) if kept[0].shape != (0,) else 0
    dtype = result_dtype(*arrays)
    return tuple([a.astype(dtype, copy=False) for a in kept]), axis


class _Split(Function):
    __slots__ = ("dim", "shapes")
    is_view = True

    @staticmethod
    def forward(ctx: Any, x: Array, lengths: tuple[int, ...], dim: int) -> tuple[Array, ...]:
        ctx.dim = dim
        index: list[Any] = [slice(None)] * x.ndim
        parts = []
        start = 0
        for length in lengths:
            index[dim] = slice(start, start + length)
            parts.append(x[tuple(index)])
            start += length
        ctx.shapes = [p.shape for p in parts]
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = next(g for g in grads if g is not None)
        xp = array_module(given)
        parts = [
            xp.zeros(shape, dtype=given.dtype) if grad is None else grad
            for grad, shape in zip(grads, ctx.shapes, strict=True)
        ]
        return xp.concatenate(parts, axis=ctx.dim), None, None


def getitem(x: Any, index: Any) -> Any:
    """Return x[index]; tensors in the index are used as arrays."""
    view, picked = split_index(x.data, index)
    if view is not None:
        x = _View.apply(x, view)
    return x if picked is None else _Pick.apply(x, picked)


def split_index(array: Array, index: Any) -> tuple[Any, Any]:
    """Return an index as one that takes a view and one that picks from the view; None for neither.

    Integers belong to the first, as in torch. numpy takes them for arrays as soon as there is one,
    and puts the axes of all arrays first if a slice lies between them.
    """
    xp = array_module(array)
    if isinstance(index, tuple):
        parts = [_plain(xp, part) for part in index]
    else:
        only = _plain(xp, index)
        if hasattr(only, "strides"):
            return None, (only,)
        parts = [only]
    is_basic = [isinstance(p, _BASIC) and not isinstance(p, bool) for p in parts]
    if all(is_basic):
        return tuple(parts), None
    if not any(p is Ellipsis or type(p) is int for p in parts):
        return None, tuple(parts)
    used = sum(_axes_used(p, b) for p, b in zip(parts, is_basic, strict=True))
    view: list[Any] = []
    picked: list[Any] = []
    for part, basic in zip(parts, is_basic, strict=True):
        if part is Ellipsis:
            rest = [slice(None)] * (array.ndim - used)
            view += rest
            picked += rest
        elif basic:
            view.append(part)
            picked += [] if isinstance(part, int) else [slice(None)]
        else:
            view += [slice(None)] * _axes_used(part, basic)
            picked.append(part)
    return tuple(view), tuple(picked)


def own_index(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index that the caller cannot change before backward."""
    return tuple([part.copy() if hasattr(part, "strides") else part for part in parts])


def _axes_used(part: Any, is_basic: bool) -> int:
    """Return how many axes of the tensor a part of an index covers."""
    if is_basic:
        return int(part is not None and part is not Ellipsis)
    if isinstance(part, bool):
        return 0
    return int(part.ndim) if part.dtype == bool_ else 1


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return the tensors joined along an axis, in their common dtype."""
    if not tensors:
        raise ShapeError("cat: no tensors given")
    return _Cat.apply(dim, *tensors)


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return the tensors joined along a new axis, in their common dtype."""
    from gradmesh.engine.autograd.ops.shape import unsqueeze

    shapes = [tuple(t.shape) for t in tensors]
    if len(set(shapes)) > 1:
        raise ShapeError(f"stack: shapes {shapes} differ")
    return cat([unsqueeze(t, dim) for t in tensors], dim)


def split(x: Any, lengths: int | Sequence[int], dim: int = 0) -> Any:
    """Split x along an axis into consecutive pieces, of one length or of the given lengths."""
    if not x.ndim:
        raise ShapeError("split: a tensor without axes has no pieces")
    axis = axis_of("split", dim, x.ndim)
    total = x.shape[axis]
    if isinstance(lengths, int):
        if lengths < 0 or (lengths == 0 and total):
            raise ShapeError(f"split: pieces of length {lengths} for an axis of length {total}")
        lengths = [min(lengths, total - i) for i in range(0, total, lengths or 1)] or [0]
    if sum(lengths) != total or min(lengths, default=0) < 0:
        raise ShapeError(f"split: lengths {list(lengths)} do not add up to {total}")
    if len(lengths) < 2:
        # The engine passes a node with one output its gradient, not a tuple.
        return (getitem(x, ...),) if lengths else ()
    return _Split.apply(x, tuple(lengths), axis)


def _plain(xp: Any, part: Any) -> Any:
    """Return a part of an index as an int, a slice, None, Ellipsis, a bool or an array."""
    if isinstance(part, tensor_module.Tensor):
        part = part.data
    elif isinstance(part, (list, tuple, range)):
        part = xp.asarray(part) if len(part) else xp.zeros(0, dtype="int64")
    elif isinstance(part, np.bool_):
        return bool(part)
    if not hasattr(part, "dtype"):
        return part
    if part.dtype == uint8:
        raise IndexError("an index of uint8 is a mask in torch and integers in numpy; cast it")
    return int(part) if part.ndim == 0 and part.dtype.kind == "i" else part
