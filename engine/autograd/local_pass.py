"""The local pass of a distributed backward: one process's share, from its entries to its leaves.

Gradients enter at several entries and at different times: at the roots, and at each message whose
gradient comes back. Each node runs once, when all its contributions are there; `run` stops when
no node is ready, and the next `feed` continues the pass.

Contributions are kept until they are complete and then added in the order of `run_backward`, so the
sums are bit-identical for any order of arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import itemgetter
from sys import getrefcount
from typing import Any, Protocol, final

from numpy import generic

from gradmesh.engine.autograd.engine import ALONE, miscounted
from gradmesh.engine.autograd.function import (
    RELEASED,
    Function,
    Output,
    check_versions,
    link,
    link_parts,
    next_sequence,
    release,
    used_before,
)
from gradmesh.engine.autograd.grad_mode import check_backward, state
from gradmesh.engine.autograd.leaf import accumulate_leaf
from gradmesh.engine.autograd.row_grad import RowGrad, add_grads
from gradmesh.engine.autograd.tensor import Tensor
from gradmesh.engine.backend import ShapeError, as_array
from gradmesh.engine.errors import GradientError


class Origin(Protocol):
    """Receive the gradients of tensors that came from another process."""

    def give_back(self, grads: list[Any], /) -> None:
        """Take the gradients of all tensors that arrived together.

        Args:
            grads: Complete, array or RowGrad; None for a tensor that none reached.
        """


class ReceiveNode(Function):
    """End the graph on this process: pass complete gradients to the origin of the tensors."""

    __slots__ = ("origin",)

    origin: Origin

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[()]:
        """Pass the gradients to the origin."""
        ctx.origin.give_back(list(grads))
        return ()


def receive(tensors: Sequence[Tensor], origin: Origin) -> ReceiveNode:
    """Attach tensors that arrived together to a common node, which returns their gradients.

    Args:
        tensors: At least one; leaves that no op has used yet.
        origin: Receives the gradients of all of them, once per pass. If a pass reaches none of
            them, only a LocalPass that expects the node calls it.
    """
    node = ReceiveNode()
    node.saved_tensors = ()
    node.origin = origin
    link(node, ())
    link_parts(node, tensors)
    return node


def find_receive_nodes(tensors: Sequence[Any], since: int) -> list[ReceiveNode]:
    """Return the receive nodes that some tensors were computed from, in any order.

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


_by_order = itemgetter(0, 1)


@final
class GradientEntry:
    """Name tensors at which gradients enter together: the roots, or those of one message.

    Args:
        tensors: They require gradients. Later changes to them do not matter: gradients enter the
            graph at the nodes the tensors have now.
    """

    __slots__ = ("sequence", "targets", "tensors")

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tuple([(tuple(t.data.shape), t.data.dtype) for t in tensors])
        self.targets = tuple([t if t.grad_fn is None else t.grad_fn for t in tensors])
        self.sequence = next_sequence()

    def check(self, grads: Sequence[Any]) -> None:
        """Check that gradients fit the tensors; None fits each.

        Raises:
            GradientError: If their number does not fit.
            ShapeError: If a shape or dtype does not fit.
        """
        if len(grads) != len(self.tensors):
            raise GradientError(f"{len(grads)} gradients for {len(self.tensors)} tensors")
        for grad, (shape, dtype) in zip(grads, self.tensors, strict=True):
            if grad is not None and (tuple(grad.shape) != shape or grad.dtype != dtype):
                raise ShapeError(
                    f"gradient of shape {tuple(grad.shape)} and {grad.dtype} for a tensor of "
                    f"shape {shape} and {dtype}"
                )


@final
class LocalPass:
    """Run the nodes that are ready, on one thread at a time.

    Args:
        entries: All entries of the pass. Each must be fed once.
        retain_graph: Keep the saved values, so that the graph can be used again.
        into: Where leaf gradients go, added to what is there.

    Attributes:
        left: Number of nodes and leaves that are not done; 0 when the pass is over.
        received: The nodes of received tensors that the pass will reach.
        before: For each leaf that got a gradient, the earlier value in `into`, or None.
    """

    def __init__(
        self, entries: Sequence[GradientEntry], *, retain_graph: bool, into: dict[Any, Any]
    ) -> None:
        self._retain_graph = retain_graph
        self._into = into
        self._anomaly = state.anomaly
        self.received: list[ReceiveNode] = []
        self._missing = _count_uses(entries, self.received)
        # Contributions so far: (order of the producer, its edge, gradient, whether it is unshared).
        self._contributions: dict[Any, list[tuple[int, int, Any, bool]]] = {}
        self._ready: list[tuple[int, Function]] = []
        self.left = len(self._missing)
        self.before: dict[Any, Any] = {}

    def feed(self, entry: GradientEntry, grads: Sequence[Any]) -> None:
        """Add the gradients of an entry, None for a tensor without one; `run` continues."""
        for position, (target, grad) in enumerate(zip(entry.targets, grads, strict=True)):
            self._contribute(target, -entry.sequence, position, grad, False)

    def run(self) -> None:
        """Run all nodes whose contributions are complete, latest first.

        Raises:
            GraphReleased: If the graph was used before without retain_graph.
            InplaceError: If a value that backward needs was changed in place.
        """
        ready = self._ready
        while ready:
            self._visit(heapq.heappop(ready)[1])

    def release_graph(self) -> None:
        """Drop the references to the graph; keep what `undo` needs."""
        self._missing.clear()
        self._contributions.clear()
        self._ready.clear()
        self.received.clear()

    def undo(self) -> None:
        """Remove what the pass added to the map."""
        for leaf, held in self.before.items():
            if held is None:
                self._into.pop(leaf, None)
            else:
                self._into[leaf] = held
        self.before.clear()

    def _contribute(self, target: Any, order: int, position: int, grad: Any, owned: bool) -> None:
        """Count one contribution to a node or leaf, and add it unless it is None."""
        if grad is not None:
            parts = self._contributions.get(target)
            if parts is None:
                self._contributions[target] = [(order, position, grad, owned)]
            else:
                parts.append((order, position, grad, owned))
        missing = self._missing[target] - 1
        self._missing[target] = missing
        if missing:
            return
        if target.is_node:
            # Sequences differ, so nodes themselves are never compared.
            heapq.heappush(self._ready, (-target.sequence, target))
        else:
            self._finish_leaf(target)

    def _finish_leaf(self, leaf: Any) -> None:
        self.left -= 1
        parts = self._contributions.pop(leaf, None)
        if parts is not None:
            grad, owned = _total(parts)
            if leaf not in self.before:
                self.before[leaf] = self._into.get(leaf)
            accumulate_leaf(leaf, as_array(grad), owned, self._into)

    def _visit(self, node: Function) -> None:
        self.left -= 1
        parts = self._contributions.pop(node, None)
        if parts is None:
            if type(node) is ReceiveNode:
                node.origin.give_back([None] * node.outputs)
            results: tuple[Any, ...] = (None,) * len(node.edges)
        elif type(node) is Output:
            grad, _ = _total(parts)
            results = (_hooked(node, grad),)
            self._contribute(node.edges[0], node.position, 0, results[0], False)
            return
        else:
            results = self._backward(node, parts)
        order = -node.sequence
        for position, edge in enumerate(node.edges):
            if edge is None:
                continue
            result = results[position]
            # No other reference: the array may be kept without a copy.
            alone = result is not None and getrefcount(result) == ALONE
            owned = alone and type(result) is not RowGrad and result.base is None
            if isinstance(result, generic):
                # A scalar of numpy, as arithmetic on arrays of no dimension gives.
                result = as_array(result)
            self._contribute(edge, order, position, result, owned)
        if not self._retain_graph and node.saved_tensors:
            release(node)

    def _backward(self, node: Function, parts: list[tuple[int, int, Any, bool]]) -> tuple[Any, ...]:
        if node.outputs > 1:
            grads: list[Any] = [None] * node.outputs
            for position, _, grad, _ in parts:
                grads[position] = grad
        else:
            grads = [_total(parts)[0]]
        if node.hooks is not None:
            if node.outputs > 1:
                for hook in node.hooks:
                    grads = hook(grads)
            else:
                grads = [_hooked(node, grads[0])]
        if node.saved_tensors is RELEASED:
            raise used_before(node)
        check_versions(node)
        results: Any = type(node).backward(node, *grads)
        if type(results) is not tuple:
            results = (results,)
        if self._anomaly:
            check_backward(node, results)
        if len(results) != len(node.edges):
            raise miscounted(node, results)
        return tuple(results)


def _count_uses(entries: Sequence[GradientEntry], received: list[ReceiveNode]) -> dict[Any, int]:
    """Count the contributions of each reachable node and leaf; collect the receive nodes."""
    uses: dict[Any, int] = {}
    stack: list[Any] = []
    for entry in entries:
        for target in entry.targets:
            if target in uses:
                uses[target] += 1
            else:
                uses[target] = 1
                if target.is_node:
                    stack.append(target)
    while stack:
        node = stack.pop()
        if type(node) is ReceiveNode:
            received.append(node)
        for edge in node.edges:
            if edge is None:
                continue
            if edge in uses:
                uses[edge] += 1
            else:
                uses[edge] = 1
                if edge.is_node:
                    stack.append(edge)
    return uses


def _total(parts: list[tuple[int, int, Any, bool]]) -> tuple[Any, bool]:
    """Return the sum of contributions, and whether it has no other reference."""
    if len(parts) == 1:
        return parts[0][2], parts[0][3]
    parts.sort(key=_by_order)
    total = as_array(add_grads(parts[0][2], parts[1][2]))
    for _, _, grad, _ in parts[2:]:
        if type(total) is RowGrad or type(grad) is RowGrad:
            total = as_array(add_grads(total, grad))
        else:
            total += grad
    return total, type(total) is not RowGrad


def _hooked(node: Function, grad: Any) -> Any:
    if node.hooks is not None:
        for hook in node.hooks:
            grad = hook(grad)
    return as_array(grad)
