"""Changes in place: refused where gradients would be wrong, counted so that backward can check.

`renew` makes a change copy-on-write for graphs that were recorded before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.grad_mode import state
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module
from gradmesh.engine.backend.dtype import can_hold
from gradmesh.engine.errors import InplaceError


class _SetItems(Function):
    """Replace some elements; the gradient of those goes to the value, the rest to the old."""

    __slots__ = ("index", "like")

    @staticmethod
    def forward(ctx: Any, x: Array, value: Any, index: Any) -> Array:
        from gradmesh.engine.autograd.ops.indexing import own_index

        view, picked = index
        ctx.index = (view, None if picked is None else own_index(picked))
        ctx.like = (getattr(value, "shape", ()), getattr(value, "dtype", x.dtype))
        out = x.copy()
        _put(out, index, value)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        from gradmesh.engine.autograd.ops.broadcast import unbroadcast

        rest = grad.copy()
        _put(rest, ctx.index, 0)
        part = None
        if ctx.needs_input_grad[1]:
            view, picked = ctx.index
            found = grad if view is None else grad[view]
            found = found if picked is None else found[picked]
            shape, dtype = ctx.like
            # A value may have more axes than what it is put into, of length 1.
            fitting = shape[max(len(shape) - found.ndim, 0) :]
            part = unbroadcast(found, (fitting, dtype)).reshape(shape)
        return rest, part, None


def _put(array: Array, index: tuple[Any, Any], value: Any) -> None:
    """Set some elements of an array; the index is what `split_index` returned."""
    view, picked = index
    shape = getattr(value, "shape", ())
    if shape and shape[0] == 1:
        # numpy refuses leading axes of length 1 that the target does not have.
        ones = next((i for i, n in enumerate(shape) if n != 1), len(shape))
        value = value.reshape(shape[ones:])
    if picked is None:
        array[view] = value
    elif view is None:
        array[picked] = value
    else:
        # The first takes a view, of one element too, so the second writes to the array itself.
        array[(*view, ...)][picked] = value


def change(target: Any, op: Callable[[Any, Any], Any], other: Any) -> Any:
    """Replace a tensor's values by those of an op on it, and its history by the op's."""
    _check(target, other)
    result = op(target, other)
    if result.shape != target.shape:
        raise ShapeError(f"in place: result {result.shape} does not fit tensor {target.shape}")
    if result.dtype != target.dtype and not can_hold(target.dtype, result.dtype):
        raise DtypeError(
            f"in place: a result of {result.dtype} cannot be written to a tensor of "
            f"{target.dtype}; use the op without the underscore"
        )
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
    from gradmesh.engine.autograd.ops.broadcast import filling

    number = filling("fill_", value, target.dtype)
    filled = array_module(target.data).full_like(target.data, number)
    return _take_over(target, tensor_module.Tensor(filled))


def set_items(target: Any, index: Any, value: Any) -> None:
    """Set some elements of a tensor."""
    _check(target, value)
    from gradmesh.engine.autograd.ops.broadcast import as_number
    from gradmesh.engine.autograd.ops.indexing import split_index

    value = as_number(value)
    split = split_index(target.data, index)
    if state.enabled and (target.requires_grad or getattr(value, "requires_grad", False)):
        _take_over(target, _SetItems.apply(target, value, split))
        return
    _put(target.data, split, _plain(value))
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


def renew(tensors: Iterable[Any]) -> None:
    """Move tensors to new memory with the same values, and reset their version counters.

    What follows may write to them in place: every graph recorded before keeps the memory that it
    saved, so its backward sees the values of its own forward and no InplaceError. An optimizer of
    parameters that several clients use does this before it steps, which makes them copy-on-write.

    Args:
        tensors: Leaves. Views of them that were made before keep the old memory.
    """
    for tensor in tensors:
        replace_memory(tensor, tensor.data.copy())


def replace_memory(tensor: Any, data: Array) -> None:
    """Replace the memory of a tensor and reset its version counter."""
    tensor.data = data
    tensor.version = [0, 0]
