"""Tensors that came from another process: where the graph of this one ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradmesh.engine.autograd.function import Function, link, link_parts
from gradmesh.engine.autograd.tensor import Tensor
from gradmesh.engine.backend import Array


class Received(Function):
    """Be the graph's end on this process: hand complete gradients to a callback."""

    __slots__ = ("on_grads",)

    on_grads: Callable[[list[Any]], None]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[()]:
        """Hand the gradients over."""
        ctx.on_grads(list(grads))
        return ()


def receive(
    arrays: Sequence[Array], on_grads: Callable[[list[Any]], None]
) -> tuple[Received, list[Any]]:
    """Return one node and a tensor for each array that arrived together.

    Args:
        arrays: What arrived, at least one.
        on_grads: Given the gradients of all of them, complete, array or RowGrad; None for a tensor
            that none reached. Called once a pass, and not at all by a pass that reaches none.
    """
    node = Received()
    node.saved_tensors = ()
    node.on_grads = on_grads
    link(node, ())
    tensors = [Tensor(array) for array in arrays]
    for tensor in tensors:
        tensor._requires_grad = True
    if len(tensors) == 1:
        tensors[0].grad_fn = node
    else:
        link_parts(node, tensors)
    return node, tensors


def find_received(tensors: Sequence[Any], since: int) -> list[Received]:
    """Return the nodes of received tensors that some tensors were made from, in no order.

    Args:
        tensors: Where to begin.
        since: Sequence of the oldest such node: what was recorded before cannot lead to one, so a
            graph that is only local costs nothing.
    """
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(stack)
    found: list[Received] = []
    while stack:
        node = stack.pop()
        if type(node) is Received:
            found.append(node)
            continue
        for edge in node.edges:
            if edge is not None and edge.is_node and edge.sequence >= since and edge not in seen:
                seen.add(edge)
                stack.append(edge)
    return found
