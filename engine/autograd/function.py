"""Function: one differentiable op, and at the same time the node it leaves in the graph.

`apply` runs `forward` on plain arrays and wires the result into the graph; the instance is the
`ctx` that forward and backward share. Gradients are arrays (or `RowGrad`) too, so a backward pass
records nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.grad_mode import check_forward, state
from gradmesh.engine.backend import DeviceError
from gradmesh.engine.errors import GraphReleased, InplaceError

_sequence = itertools.count()
_NOTHING: tuple[Any, ...] = ()


class Function:
    """Base class of differentiable ops, defined by a static `forward` and `backward`.

    Subclasses define `forward(ctx, *args)`, which gets arrays for tensors and returns an array or
    a tuple of them, and `backward(ctx, *grads)`, which returns one gradient (or None) per
    positional argument of forward. What backward needs goes through `ctx.save_for_backward`;
    anything small may be set on ctx.
    """

    __slots__ = (
        "edges",
        "hooks",
        "outputs",
        "saved_tensors",
        "sequence",
        "versions",
    )

    # Edges lead to nodes and to leaves; reading a class attribute is faster than isinstance.
    is_node = True

    # A view shares its version counter with its source, so that in-place changes through it are
    # counted.
    is_view = False

    edges: tuple[Any, ...]
    hooks: list[Callable[[Any], Any]] | None
    outputs: int
    saved_tensors: tuple[Any, ...]
    sequence: int
    # Of the op's tensors: counter of in-place changes, its count at forward, identity of the array.
    versions: Sequence[tuple[list[int], int, int]]

    @staticmethod
    def forward(ctx: Any, *args: Any, **options: Any) -> Any:
        """Compute the result from arrays."""
        raise TypeError(f"{type(ctx).__name__} defines no forward")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute one gradient per positional argument of forward."""
        raise TypeError(f"{type(ctx).__name__} has no backward: it cannot be differentiated")

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Return for each positional argument of forward whether its gradient is needed."""
        return tuple([edge is not None for edge in self.edges])

    def save_for_backward(self, *arrays: Any) -> None:
        """Keep arrays until backward has run; they are checked against in-place changes."""
        self.saved_tensors = arrays

    def name(self) -> str:
        """Name the op as error messages show it."""
        return type(self).__name__.lstrip("_")

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Run the op on tensors and other arguments, and record it if an input needs a gradient."""
        tensor_class = tensor_module.Tensor
        node = cls()
        node.saved_tensors = _NOTHING
        values: list[Any] = []
        edges: list[Any] = []
        tensors: list[Any] = []
        wanted = is_foreign = False
        for arg in args:
            edge = None
            if isinstance(arg, tensor_class):
                if arg.seen is not None and arg.seen != arg.version[1]:
                    refuse_stale(arg)
                tensors.append(arg)
                if arg._requires_grad:
                    wanted = True
                    edge = arg.grad_fn or arg
                arg = arg.data
                if type(arg) is not ndarray:
                    is_foreign = True
            values.append(arg)
            edges.append(edge)
        if is_foreign:
            _check_devices(cls, tensors)
        recorded = wanted and state.enabled
        node.edges = tuple(edges) if recorded else (None,) * len(edges)
        result = cls.forward(node, *values, **options)
        if state.anomaly:
            check_forward(node, result)
        if type(result) is not ndarray:
            if type(result) is tuple:
                return _wrap_many(node, result, tensors, recorded)
            if isinstance(result, np.generic):
                result = np.asarray(result)
        out = tensor_class(result)
        if cls.is_view:
            out.version = tensors[0].version
            out.seen = out.version[1]
        if recorded:
            node.hooks = None
            node.outputs = 1
            node.sequence = next(_sequence)
            out._requires_grad = True
            out.grad_fn = node
            if node.saved_tensors:
                tensors.append(out)
                node.versions = [(t.version, t.version[0], id(t.data)) for t in tensors]
            else:
                node.versions = _NOTHING
        return out


class Output(Function):
    """Represent one of several results of a node; its gradient is the one at that position."""

    __slots__ = ("position",)

    position: int


def link(node: Function, edges: tuple[Any, ...]) -> None:
    """Put a node into the graph; its edges are the producers, or the leaves themselves."""
    node.edges = edges
    node.hooks = None
    node.outputs = 1
    node.versions = ()
    node.sequence = next(_sequence)


def _wrap_many(node: Function, results: Any, tensors: list[Any], recorded: bool) -> Any:
    """Make tensors of several results, each with a node of its own before the common one."""
    arrays = [np.asarray(r) if isinstance(r, np.generic) else r for r in results]
    outs = tuple([tensor_module.Tensor(array) for array in arrays])
    if type(node).is_view:
        for out in outs:
            out.version = tensors[0].version
            out.seen = out.version[1]
    if recorded:
        link(node, node.edges)
        link_parts(node, outs)
        node.versions = [(t.version, t.version[0], id(t.data)) for t in (*tensors, *outs)]
    return outs


def link_parts(node: Function, outs: Sequence[Any]) -> None:
    """Make tensors the results of a node; several each through a node of its own before it."""
    node.outputs = len(outs)
    if len(outs) == 1:
        outs[0]._requires_grad = True
        outs[0].grad_fn = node
        return
    for position, out in enumerate(outs):
        part = Output()
        part.saved_tensors = _NOTHING
        part.position = position
        link(part, (node,))
        out._requires_grad = True
        out.grad_fn = part


def next_sequence() -> int:
    """Return the next sequence number, for events that are ordered among ops without being one."""
    return next(_sequence)


RELEASED: tuple[Any, ...] = ("released",)
"""Replaces the saved values of a node once they are released."""


def release(node: Function) -> None:
    """Drop what a node saved; a second backward through it is refused then."""
    if node.saved_tensors:
        node.saved_tensors = RELEASED
        node.versions = _NOTHING


def check_versions(node: Function) -> None:
    """Raise InplaceError if an array that the node saved was changed since."""
    for counter, version, array in node.versions:
        if counter[0] != version and array in map(id, node.saved_tensors):
            raise InplaceError(
                f"a value that the backward of {node.name()} needs was changed in place after the "
                "forward; use the op without the trailing underscore, or clone the tensor first"
            )


def refuse_stale(view: Any) -> None:
    """Raise InplaceError if ops are recorded: the view's history is not that of its values."""
    if state.enabled:
        raise InplaceError(
            f"a view of shape {view.shape} was taken before its memory was changed in place by a "
            "recorded op; take the view again after the change, or clone it before"
        )


def used_before(node: Function) -> GraphReleased:
    """Return the error for a node whose saved values are gone."""
    return GraphReleased(
        f"the values saved by {node.name()} are gone: a backward pass has used this graph; "
        "pass retain_graph=True to the first backward to run a second one"
    )


def _check_devices(cls: type[Function], tensors: list[Any]) -> None:
    """Raise DeviceError if devices differ; subclasses of numpy's array are on the same one."""
    devices = [str(tensor.device) for tensor in tensors]
    if len(set(devices)) > 1:
        raise DeviceError(
            f"{cls.__name__.lstrip('_')} got tensors on {', '.join(devices)}; "
            "move them to one device with .to(...)"
        )
