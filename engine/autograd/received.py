"""Tensors that came from another process: where the graph of this one ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gradmesh.engine.autograd.function import Function, link, link_parts
from gradmesh.engine.autograd.tensor import Tensor


class Origin(Protocol):
    """Where received tensors came from, and their gradients go."""

    def give_back(self, grads: list[Any], /) -> None:
        """Take the gradients of all tensors that arrived together.

        Args:
            grads: Complete, array or RowGrad; None for a tensor that none reached.
        """


class Received(Function):
    """Be the graph's end on this process: hand complete gradients to their origin."""

    __slots__ = ("origin",)

    origin: Origin

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[()]:
        """Hand the gradients over."""
        ctx.origin.give_back(list(grads))
        return ()


def receive(tensors: Sequence[Tensor], origin: Origin) -> Received:
    """Give tensors that arrived together a common node, through which their gradients go back.

    Args:
        tensors: At least one; leaves that nobody has used yet.
        origin: Given the gradients of all of them, once a pass. A pass that reaches none of them
            does so only if it was told to expect it, as a PartialPass is by its entries.
    """
    node = Received()
    node.saved_tensors = ()
    node.origin = origin
    link(node, ())
    link_parts(node, tensors)
    return node


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
