"""Sorting along an axis; equal elements keep their order, NaN counts as the largest."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.ops.arguments import as_int, axis_of
from gradmesh.engine.autograd.ops.selection import gather
from gradmesh.engine.autograd.ops.shape import copy
from gradmesh.engine.backend import Array, ShapeError, array_module
from gradmesh.engine.backend.dtype import float32


class Sorted(NamedTuple):
    """Sorted elements, and their indices in the input."""

    values: Any
    indices: Any


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Return the positions of an array's elements in sorted order."""
    xp = array_module(x)
    if x.ndim == 0:
        return xp.zeros((), dtype="int64")
    # Neither half precision nor bool can be sorted everywhere; both fit into wider types.
    if x.dtype.itemsize < 4 and x.dtype.kind not in "iu":
        x = x.astype(float32)
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable").astype("int64", copy=False)
    # Sort the flipped array and flip the result, so that equal elements keep their order.
    back = xp.argsort(xp.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - xp.flip(back, axis).astype("int64", copy=False)


def _taken(x: Any, axis: int, positions: Array) -> Sorted:
    indices = tensor_module.Tensor(positions)
    return Sorted(gather(x, axis, indices) if x.ndim else copy(x), indices)


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Sorted:
    """Return the elements sorted along an axis, and their indices.

    Args:
        x: A tensor.
        dim: The axis.
        descending: Whether the largest comes first.
        stable: Accepted for compatibility with torch: equal elements always keep their order.
    """
    axis = axis_of("sort", dim, x.ndim)
    return _taken(x, axis, _order(x.data, axis, descending))


def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Return the indices that sort x along an axis; arguments as in `sort`."""
    axis = axis_of("argsort", dim, x.ndim)
    return tensor_module.Tensor(_order(x.data, axis, descending))


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Sorted:
    """Return the k largest (or smallest) elements along an axis, and their indices.

    Args:
        x: A tensor.
        k: How many.
        dim: The axis.
        largest: Whether the largest are wanted, or the smallest.
        sorted: Accepted for compatibility with torch: the result is always in order, and equal
            elements keep theirs.

    Raises:
        ShapeError: If the axis has fewer than k elements, or k is negative.
    """
    axis = axis_of("topk", dim, x.ndim)
    count = as_int("topk", "k", k)
    length = x.shape[axis] if x.ndim else 1
    if not 0 <= count <= length:
        raise ShapeError(f"topk: k is {count}, but axis {axis} has {length} elements")
    positions = _order(x.data, axis, largest)
    if x.ndim:
        positions = positions[(*[slice(None)] * axis, slice(0, count))]
    return _taken(x, axis, positions)
