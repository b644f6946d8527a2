"""Adding elements at places given by an index."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops import rows
from gradmesh.engine.autograd.ops.axis import axis_of
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module


class _ScatterAdd(Function):
    __slots__ = ("shape",)

    @staticmethod
    def forward(ctx: Any, x: Array, src: Array, axis: int, index: Array) -> Array:
        _check(x, src, axis, index)
        places = _places(x, axis, index)
        ctx.shape = src.shape
        ctx.save_for_backward(places)
        out = x.copy().reshape(-1, 1)
        if places.size:
            rows.scatter_add(out, places.reshape(-1), src[_cut(places)].reshape(-1, 1))
        return out.reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (places,) = ctx.saved_tensors
        grad_src = None
        if ctx.needs_input_grad[1]:
            grad_src = array_module(grad).zeros(ctx.shape, dtype=grad.dtype)
            if places.size:
                grad_src[_cut(places)] = grad.reshape(-1)[places]
        return grad, grad_src, None, None


def _cut(index: Array) -> tuple[slice, ...]:
    """Return the part of src that the index covers; torch leaves the rest alone."""
    return tuple(slice(0, n) for n in index.shape)


def _places(x: Array, axis: int, index: Array) -> Array:
    """Return for each element of the index its place in x, counted in row-major order."""
    xp = array_module(index)
    out = xp.zeros(index.shape, dtype="int64")
    step = 1
    for place in reversed(range(x.ndim)):
        along = [1] * place + [-1] + [1] * (x.ndim - place - 1)
        at = index if place == axis else xp.arange(index.shape[place]).reshape(along)
        out += at.astype("int64", copy=False) * step
        step *= x.shape[place]
    return out


def _check(x: Array, src: Array, axis: int, index: Array) -> None:
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
    for place, length in enumerate(index.shape if index.size else ()):
        if length > src.shape[place] or (place != axis and length > x.shape[place]):
            raise ShapeError(
                f"scatter_add: index {shapes[2]} is larger than src {shapes[1]}, "
                f"or than tensor {shapes[0]} apart from axis {axis}"
            )
    limit = x.shape[axis] if x.ndim else 1
    if bool(((index < 0) | (index >= limit)).any()):
        raise IndexError(f"scatter_add: an index lies outside the {limit} places of axis {axis}")


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """Return x with each element of src added at its place along an axis; repeated places add up.

    Args:
        x: A tensor.
        dim: The axis that the index counts along.
        index: Integers, no longer than src along any axis, nor than x along the other axes.
        src: What is added, of x's dtype.
    """
    axis = axis_of("scatter_add", dim, x.ndim)
    return _ScatterAdd.apply(x, src, axis, index)
