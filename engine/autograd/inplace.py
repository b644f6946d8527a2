"""Changes in place: allowed where gradients stay right, counted so that a backward can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.errors import InplaceError
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.grad_mode import state
from gradmesh.engine.backend import Array, ShapeError, array_module


class _SetItems(Function):
    """Replace some elements; the gradient of those goes to the value, the rest to the old."""

    __slots__ = ("index", "like")

    @staticmethod
    def forward(ctx: Any, x: Array, value: Any, index: Any) -> Array:
        ctx.index = index
        ctx.like = (getattr(value, "shape", ()), getattr(value, "dtype", x.dtype))
        out = x.copy()
        out[index] = value
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        from gradmesh.engine.autograd.ops.broadcast import unbroadcast

        rest = grad.copy()
        rest[ctx.index] = 0
        part = unbroadcast(grad[ctx.index], ctx.like) if ctx.needs_input_grad[1] else None
        return rest, part, None


def change(target: Any, op: Callable[[Any, Any], Any], other: Any) -> Any:
    """Replace a tensor's values by those of an op on it, and its history by the op's."""
    _check(target, other)
    result = op(target, other)
    if result.shape != target.shape:
        raise ShapeError(f"in place: result {result.shape} does not fit tensor {target.shape}")
    _keep_old(target.data, result.grad_fn)
    return _take_over(target, result)


def _keep_old(array: Array, node: Any) -> None:
    """Give the node a copy of an array that it saved and that is about to be overwritten."""
    if node is not None and any(saved is array for saved in node.saved_tensors):
        old = array.copy()
        node.saved_tensors = tuple([old if s is array else s for s in node.saved_tensors])


def copy_from(target: Any, other: Any) -> Any:
    """Replace a tensor's values by another's."""
    from gradmesh.engine.autograd.ops.shape import broadcast_to, copy

    _check(target, other)
    value = copy(other, target.dtype, target.device)
    return _take_over(
        target, value if value.shape == target.shape else broadcast_to(value, target.shape)
    )


def fill(target: Any, value: float) -> Any:
    """Set every element of a tensor."""
    _check(target, None)
    filled = array_module(target.data).full_like(target.data, value)
    return _take_over(target, tensor_module.Tensor(filled))


def set_items(target: Any, index: Any, value: Any) -> None:
    """Set some elements of a tensor."""
    _check(target, value)
    plain = tuple(_plain(i) for i in index) if isinstance(index, tuple) else _plain(index)
    if state.enabled and (target.requires_grad or getattr(value, "requires_grad", False)):
        _take_over(target, _SetItems.apply(target, value, plain))
        return
    target.data[plain] = _plain(value)
    target.version[0] += 1


def _take_over(target: Any, result: Any) -> Any:
    target.data[...] = result.data
    target.version[0] += 1
    if result.requires_grad:
        target.version[1] += 1
        target.grad_fn = result.grad_fn
        target._requires_grad = True
    elif state.enabled and target.grad_fn is not None:
        target.version[1] += 1
        target.grad_fn = None
        target._requires_grad = False
    return target


def _check(target: Any, other: Any) -> None:
    tracked = target.requires_grad or getattr(other, "requires_grad", False)
    if not state.enabled or not tracked:
        return
    if target.is_leaf and target.requires_grad:
        raise InplaceError(
            "a leaf that requires a gradient cannot be changed in place; do it under no_grad()"
        )
    if target.is_view:
        raise InplaceError(
            "a view whose gradient is recorded cannot be changed in place; clone it first"
        )


def _plain(value: Any) -> Any:
    return value.data if isinstance(value, tensor_module.Tensor) else value
