"""The backward pass of one process.

Nodes run in the reverse of the order they were recorded in, each once and with its complete
gradient, so sums have one order on every run. Leaves are finished as soon as their last use is
known, so that a reducer can overlap communication with the rest of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from sys import getrefcount
from typing import Any

import numpy as np
from numpy import generic

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.backward_scope import run_in_scope
from gradmesh.engine.autograd.function import (
    RELEASED,
    Function,
    Output,
    check_versions,
    refuse_stale,
    release,
    used_before,
)
from gradmesh.engine.autograd.grad_mode import check_backward, state
from gradmesh.engine.autograd.leaf import accumulate_leaf
from gradmesh.engine.autograd.row_grad import RowGrad, add_grads
from gradmesh.engine.backend import Array, ShapeError, as_array
from gradmesh.engine.errors import GradientError

_by_sequence = attrgetter("sequence")


def _count_alone() -> int:
    """Return the reference count of an array that has only a tuple and a local name."""
    results = (np.empty(0),)
    result = results[0]
    return getrefcount(result)


# Measured, because what a call adds to the count differs between versions of Python.
ALONE = _count_alone()
"""A gradient with this count is referenced by the pass only, so it needs no copy."""


def run_backward(
    roots: Sequence[Any],
    grads: Sequence[Any] | None = None,
    retain_graph: bool = False,
    into: dict[Any, Any] | None = None,
) -> None:
    """Run the backward pass from some tensors.

    Args:
        roots: Tensors to start from.
        grads: Gradient of each root, tensor or array; None means 1 for a root of one element.
        retain_graph: Keep the saved values, so that the graph can be used again.
        into: Where leaf gradients go: a map from leaf tensor to array or RowGrad, added to if the
            leaf is in it already. `.grad` stays untouched then. None means `.grad`.

    Raises:
        GradientError: If a root carries no gradient, or has more than one element and no grad.
        GraphReleased: If the graph was used before without retain_graph.
        InplaceError: If a value that backward needs was changed in place.
    """
    run_in_scope(into, lambda: _FullPass(retain_graph, into).run(roots, grads))


def reachable_nodes(roots: Sequence[Any]) -> list[Function]:
    """Return the nodes that a backward from these tensors would visit, first to run first."""
    nodes, _ = _explore([root.grad_fn for root in roots if root.grad_fn is not None])
    return nodes


def _explore(starts: list[Function]) -> tuple[list[Function], dict[Any, int]]:
    """Return the reachable nodes, latest first, and how often each leaf is used."""
    seen = set(starts)
    # A list that grows during the iteration is the cheapest queue.
    nodes = list(seen)
    uses: dict[Any, int] = {}
    for node in nodes:
        for edge in node.edges:
            if edge is None:
                continue
            if not edge.is_node:
                uses[edge] = uses.get(edge, 0) + 1
            elif edge not in seen:
                seen.add(edge)
                nodes.append(edge)
    nodes.sort(key=_by_sequence, reverse=True)
    return nodes, uses


class _FullPass:
    """Run one backward pass whose gradients are all known at the start."""

    __slots__ = ("anomaly", "into", "owned", "pending", "retain_graph", "uses")

    def __init__(self, retain_graph: bool, into: dict[Any, Any] | None) -> None:
        self.retain_graph = retain_graph
        self.into = into
        self.anomaly = state.anomaly
        self.pending: dict[Any, Any] = {}
        # Keys of pending whose array was made here and may be added to in place.
        self.owned: set[Any] = set()

    def run(self, roots: Sequence[Any], grads: Sequence[Any] | None) -> None:
        seeds = _seeds(roots, grads)
        nodes, uses = _explore([r.grad_fn for r, _ in seeds if r.grad_fn is not None])
        self.uses = uses
        for root, _ in seeds:
            if root.grad_fn is None:
                uses[root] = uses.get(root, 0) + 1
        for root, grad in seeds:
            if root.grad_fn is not None:
                self._add(root.grad_fn, grad)
            else:
                self._add(root, grad)
                self._count_use(root)
        for node in nodes:
            self._visit(node)

    def _visit(self, node: Function) -> None:
        grad = self.pending.pop(node, None)
        if grad is None:
            self._skip(node)
            return
        if node.hooks is not None:
            for hook in node.hooks:
                grad = hook(grad)
        if type(node) is Output:
            self._place(node, grad)
            return
        if node.saved_tensors is RELEASED:
            raise used_before(node)
        for counter, version, _ in node.versions:
            if counter[0] != version:
                check_versions(node)
                break
        results = node.backward(node, *grad) if node.outputs > 1 else node.backward(node, grad)
        if type(results) is not tuple:
            results = (results,)
        if self.anomaly:
            check_backward(node, results)
        edges = node.edges
        if len(results) != len(edges):
            raise miscounted(node, results)
        for position, edge in enumerate(edges):
            if edge is None:
                continue
            result = results[position]
            if edge.is_node:
                if result is not None:
                    self._add(edge, result)
            elif result is None:
                self._count_use(edge)
            else:
                alone = getrefcount(result) == ALONE and type(result) is not RowGrad
                owned = alone and result.base is None
                if self.uses[edge] == 1 and edge not in self.pending:
                    accumulate_leaf(edge, as_array(result), owned, self.into)
                else:
                    self._add_leaf(edge, result, owned)
        if not self.retain_graph and node.saved_tensors:
            release(node)

    def _skip(self, node: Function) -> None:
        """Count the uses of leaves by a node that no gradient has reached."""
        for edge in node.edges:
            if edge is not None and not edge.is_node:
                self._count_use(edge)

    def _add_leaf(self, leaf: Any, grad: Any, owned: bool) -> None:
        """Add a gradient to a leaf that is used more than once."""
        if owned and leaf not in self.pending:
            self.owned.add(leaf)
        self._add(leaf, grad)
        self._count_use(leaf)

    def _add(self, target: Any, grad: Any) -> None:
        """Add a gradient to those pending for a node or leaf."""
        pending = self.pending
        if isinstance(grad, generic):
            grad = np.asarray(grad)
        held = pending.get(target)
        if held is None:
            pending[target] = grad
        elif target in self.owned and type(held) is not RowGrad and type(grad) is not RowGrad:
            held += grad
        else:
            pending[target] = as_array(add_grads(held, grad))
            self.owned.add(target)

    def _count_use(self, leaf: Any) -> None:
        """Count one use of a leaf as done, and finish the leaf after its last use."""
        left = self.uses[leaf] - 1
        self.uses[leaf] = left
        if left == 0 and leaf in self.pending:
            accumulate_leaf(leaf, self.pending.pop(leaf), leaf in self.owned, self.into)

    def _place(self, part: Output, grad: Any) -> None:
        """Store the gradient of one result among those of its node."""
        node = part.edges[0]
        if node not in self.pending:
            self.pending[node] = [None] * node.outputs
        self.pending[node][part.position] = grad


def _seeds(roots: Sequence[Any], grads: Sequence[Any] | None) -> list[tuple[Any, Array]]:
    if grads is None:
        return [(root, _seed(root, None)) for root in roots]
    if len(grads) != len(roots):
        raise GradientError(f"{len(grads)} gradients for {len(roots)} roots")
    return [(root, _seed(root, grad)) for root, grad in zip(roots, grads, strict=True)]


def _seed(root: Any, grad: Any) -> Array:
    if root.seen is not None and root.seen != root.version[1]:
        refuse_stale(root)
    if not root._requires_grad:
        raise GradientError("this tensor has no gradient: nothing it was made from requires one")
    if grad is None:
        data = root.data
        if data.size != 1:
            raise GradientError(
                f"a gradient must be given to start from a tensor of shape {root.shape}; "
                "only a tensor of one element starts from 1"
            )
        start = data.copy()
        start.fill(1)
        return start
    data = grad.data if isinstance(grad, tensor_module.Tensor) else grad
    if tuple(data.shape) != root.shape:
        raise ShapeError(
            f"gradient of shape {tuple(data.shape)} for a tensor of shape {root.shape}"
        )
    return data if data.dtype == root.data.dtype else data.astype(root.data.dtype)


def miscounted(node: Function, results: tuple[Any, ...]) -> GradientError:
    """Return the error for a backward that gave too few or too many gradients."""
    return GradientError(
        f"{node.name()}: backward returned {len(results)} gradients for {len(node.edges)} inputs"
    )
