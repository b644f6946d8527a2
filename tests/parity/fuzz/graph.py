"""A graph as plain data: leaves and calls in the order in which they run, so it shrinks and prints.

The place of an item in `Graph.items` is its slot; a `Ref` names one tensor of a slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """Name a tensor: the slot that made it and, where the slot made several, which one."""

    slot: int
    part: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Dtype:
    """Stand for a dtype of either library."""

    name: str


@dataclasses.dataclass(slots=True)
class Leaf:
    """An input: its values in their dtype, how they lie in memory, whether it wants a gradient."""

    values: Any
    layout: tuple[Any, ...] = ("plain",)
    requires_grad: bool = False


@dataclasses.dataclass(slots=True)
class Node:
    """A call of an op of the registry, with the values of its template's variables."""

    op: str
    args: dict[str, Any]
    no_grad: bool = False


@dataclasses.dataclass(slots=True)
class Graph:
    """Items in the order in which they run, the roots of the backward pass, and its gradients."""

    items: list[Leaf | Node]
    roots: list[Ref] = dataclasses.field(default_factory=list)
    # Seeds the gradients that backward begins with, so that they need no place in the graph.
    gradient_seed: int = 0
    # "each": one backward per root; "grad": autograd.grad of all roots at once.
    mode: str = "each"

    def ops(self) -> list[str]:
        """Return the names of the ops in it."""
        return [item.op for item in self.items if isinstance(item, Node)]


def refs(value: Any) -> Iterator[Ref]:
    """Yield the tensors that an argument names."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from refs(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from refs(part)


def replaced(value: Any, by: Callable[[Any], Any]) -> Any:
    """Return an argument with its tensors and dtypes replaced by the results of a function."""
    if isinstance(value, (Ref, Dtype)):
        return by(value)
    if isinstance(value, list):
        return [replaced(part, by) for part in value]
    if isinstance(value, tuple):
        return tuple([replaced(part, by) for part in value])
    return value


def lay_out(values: Any, layout: tuple[Any, ...]) -> Any:
    """Return an array of the same values whose memory lies as a layout says."""
    kind = layout[0]
    if kind == "permuted":
        back = np.argsort(layout[1])
        return values.transpose(layout[1]).copy(order="C").transpose(back)
    if kind == "stepped":
        wide = np.repeat(values, 2, axis=layout[1])
        return wide[(slice(None),) * layout[1] + (slice(None, None, 2),)]
    if kind == "negative":
        return np.flip(np.flip(values, layout[1]).copy(), layout[1])
    if kind == "broadcast":
        # Writable, unlike broadcast_to: both libraries must see memory that is theirs.
        first = values.take([0], axis=layout[1])
        strides = [0 if a == layout[1] else s for a, s in enumerate(first.strides)]
        return np.lib.stride_tricks.as_strided(first, values.shape, strides)
    return values.copy()
