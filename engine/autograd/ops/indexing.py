"""Indexing, joining and splitting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.rows import scatter_add
from gradmesh.engine.backend import Array, ShapeError, array_module


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
    """Index with arrays; repeated places add up, in order."""

    __slots__ = ("index", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, index: Any) -> Array:
        ctx.index, ctx.shape = index, x.shape
        return x[index]

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        xp = array_module(grad)
        out = xp.zeros(ctx.shape, dtype=grad.dtype)
        places = xp.arange(out.size).reshape(ctx.shape)[ctx.index]
        scatter_add(out.reshape(-1, 1), places.reshape(-1), grad.reshape(-1, 1))
        return out, None


class _Cat(Function):
    __slots__ = ("dim", "lengths")

    @staticmethod
    def forward(ctx: Any, dim: int, *arrays: Array) -> Array:
        ctx.dim = dim
        ctx.lengths = [a.shape[dim] for a in arrays]
        try:
            return array_module(arrays[0]).concatenate(arrays, axis=dim)
        except ValueError as error:
            shapes = ", ".join(str(tuple(a.shape)) for a in arrays)
            raise ShapeError(f"cat: shapes {shapes} do not fit along axis {dim}") from error

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        parts: list[Any] = [None]
        start = 0
        index: list[Any] = [slice(None)] * grad.ndim
        for length, needed in zip(ctx.lengths, ctx.needs_input_grad[1:], strict=True):
            index[ctx.dim] = slice(start, start + length)
            parts.append(grad[tuple(index)] if needed else None)
            start += length
        return tuple(parts)


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
    """Return x[index]; tensors in the index stand for their arrays."""
    xp = array_module(x.data)
    given = index if isinstance(index, tuple) else (index,)
    parts = tuple([_plain(xp, part) for part in given])
    basic = all(isinstance(p, (int, slice, type(None), type(Ellipsis))) for p in parts)
    if basic and not any(isinstance(p, bool) for p in parts):
        return _View.apply(x, parts)
    return _Pick.apply(x, parts)


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return the tensors joined along an axis."""
    if not tensors:
        raise ShapeError("cat: no tensors given")
    return _Cat.apply(dim, *tensors)


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return the tensors joined along a new axis."""
    from gradmesh.engine.autograd.ops.shape import unsqueeze

    return cat([unsqueeze(t, dim) for t in tensors], dim)


def split(x: Any, lengths: int | Sequence[int], dim: int = 0) -> Any:
    """Return consecutive pieces of x along an axis, of one length or of the lengths given."""
    total = x.shape[dim]
    if isinstance(lengths, int):
        lengths = [min(lengths, total - i) for i in range(0, total, lengths)]
    if sum(lengths) != total:
        raise ShapeError(f"split: lengths {list(lengths)} do not add up to {total}")
    return _Split.apply(x, tuple(lengths), dim)


def _plain(xp: Any, part: Any) -> Any:
    if isinstance(part, tensor_module.Tensor):
        return part.data
    return xp.asarray(part) if isinstance(part, list) else part
