"""The node of tensors received from another process, where this process's graph ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gradmesh.engine.autograd.function import Function, link, link_parts
from gradmesh.engine.autograd.tensor import Tensor


class Origin(Protocol):
    """Where received tensors came from and where their gradients go."""

    def give_back(self, grads: list[Any], /) -> None:
        """Take the gradients of all tensors that arrived together.

        Args:
            grads: Complete, array or RowGrad; None for a tensor that none reached.
        """


class ReceiveNode(Function):
    """End the graph on this process: hand complete gradients to the origin of the tensors."""

    __slots__ = ("origin",)

    origin: Origin

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[()]:
        """Hand the gradients over."""
        ctx.origin.give_back(list(grads))
        return ()


def receive(tensors: Sequence[Tensor], origin: Origin) -> ReceiveNode:
    """Give tensors that arrived together a common node, through which their gradients go back.

    Args:
        tensors: At least one; leaves that no op has used yet.
        origin: Given the gradients of all of them, once a pass. A pass that reaches none of them
            does so only if it was told to expect it, as a LocalPass is by its entries.
    """
    node = ReceiveNode()
    node.saved_tensors = ()
    node.origin = origin
    link(node, ())
    link_parts(node, tensors)
    return node


def find_receive_nodes(tensors: Sequence[Any], since: int) -> list[ReceiveNode]:
    """Return the receive nodes that some tensors were computed from, in no order.

    Args:
        tensors: Where to begin.
        since: Sequence of the oldest such node: what was recorded before cannot lead to one, so a
            graph that is only local costs nothing.
    """
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(stack)
    found: list[ReceiveNode] = []
    while stack:
        node = stack.pop()
        if type(node) is ReceiveNode:
            found.append(node)
            continue
        for edge in node.edges:
            if edge is not None and edge.is_node and edge.sequence >= since and edge not in seen:
                seen.add(edge)
                stack.append(edge)
    return found
