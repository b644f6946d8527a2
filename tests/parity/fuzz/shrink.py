"""Makes a failing graph small: fewer items, one root, plain memory, short axes, simple values.

Each step proposes a smaller graph and keeps it if it still fails in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np

from tests.parity.fuzz.execute import execute
from tests.parity.fuzz.graph import Graph, Leaf, Node, Ref, refs, replaced
from tests.parity.fuzz.library import FLOATS, TORCH, numpy_dtype

_ROUNDS = 6


def shrink(graph: Graph, still_fails: Callable[[Graph], bool]) -> Graph:
    """Return the smallest graph found that still fails.

    Args:
        graph: One that fails.
        still_fails: Returns whether a graph fails in the same way.
    """
    for _ in range(_ROUNDS):
        smaller = _once(graph, still_fails)
        if smaller is graph:
            return graph
        graph = smaller
    return graph


def _once(graph: Graph, still_fails: Callable[[Graph], bool]) -> Graph:
    for step in (
        _with_fewer_roots,
        _with_fewer_items,
        _with_cuts,
        _with_simpler_leaves,
        _with_shorter_axes,
    ):
        again = True
        while again:
            again = False
            for proposal in step(graph):
                if _fails(proposal, still_fails):
                    graph, again = proposal, step is not _with_simpler_leaves
                    break
            if step is _with_simpler_leaves:
                graph = _each_leaf(graph, still_fails)
    return graph


def _fails(graph: Graph, still_fails: Callable[[Graph], bool]) -> bool:
    try:
        return still_fails(graph)
    except Exception:
        # A proposal that makes no sense, for instance an axis that is gone.
        return False


def _with_fewer_roots(graph: Graph) -> Iterator[Graph]:
    if graph.roots:
        yield _copy(graph, roots=[])
    if graph.mode != "each":
        yield _copy(graph, mode="each")
    for place in range(len(graph.roots)):
        if len(graph.roots) > 1:
            yield _copy(graph, roots=graph.roots[:place] + graph.roots[place + 1 :])


def _with_fewer_items(graph: Graph) -> Iterator[Graph]:
    for slot in reversed(range(len(graph.items))):
        smaller = without(graph, {slot})
        if smaller.items:
            yield smaller


def without(graph: Graph, gone: set[int]) -> Graph:
    """Return the graph without some items and all that use them."""
    gone = set(gone)
    for slot, item in enumerate(graph.items):
        if isinstance(item, Node) and any(r.slot in gone for r in refs(item.args)):
            gone.add(slot)
    kept = [slot for slot in range(len(graph.items)) if slot not in gone]
    number = {old: new for new, old in enumerate(kept)}

    def moved(value: object) -> object:
        return Ref(number[value.slot], value.part) if isinstance(value, Ref) else value

    items: list[Leaf | Node] = []
    for slot in kept:
        item = graph.items[slot]
        if isinstance(item, Node):
            args = {k: replaced(v, moved) for k, v in item.args.items()}
            item = Node(item.op, args, item.no_grad)
        items.append(item)
    roots = [Ref(number[r.slot], r.part) for r in graph.roots if r.slot in number]
    return Graph(items, roots, graph.gradient_seed, graph.mode)


def _with_cuts(graph: Graph) -> Iterator[Graph]:
    """Replace a node by a leaf of the values that torch gave."""
    values = execute(graph, TORCH).values
    for slot, item in enumerate(graph.items):
        value = values[slot]
        if isinstance(item, Leaf) or not isinstance(value, list) or len(value) != 1:
            continue
        tensor = value[0]
        name = TORCH.dtype_name(tensor)
        array = np.asarray(TORCH.array(tensor)).astype(numpy_dtype(name))
        items = list(graph.items)
        items[slot] = Leaf(array.copy(), requires_grad=bool(tensor.requires_grad))
        smaller = _copy(graph, items=items)
        unused = {
            k
            for k, i in enumerate(items)
            if k < slot
            and not any(_uses(later, k) for later in items[k + 1 :])
            and not any(r.slot == k for r in graph.roots)
            and isinstance(i, (Leaf, Node))
        }
        yield without(smaller, unused)
        yield smaller


def _uses(item: Leaf | Node, slot: int) -> bool:
    return isinstance(item, Node) and any(r.slot == slot for r in refs(item.args))


def _with_simpler_leaves(graph: Graph) -> Iterator[Graph]:
    items = [
        Leaf(i.values, ("plain",), i.requires_grad) if isinstance(i, Leaf) else i
        for i in graph.items
    ]
    yield _copy(graph, items=items)


def _each_leaf(graph: Graph, still_fails: Callable[[Graph], bool]) -> Graph:
    for slot in range(len(graph.items)):
        for change in (_plain, _constant, _rounded, _ones, _float32, _float64):
            item = graph.items[slot]
            if not isinstance(item, Leaf):
                break
            simpler = change(item)
            if simpler is None:
                continue
            items = list(graph.items)
            items[slot] = simpler
            proposal = _copy(graph, items=items)
            if _fails(proposal, still_fails):
                graph = proposal
        item = graph.items[slot]
        if isinstance(item, Node) and item.no_grad:
            items = list(graph.items)
            items[slot] = Node(item.op, item.args)
            proposal = _copy(graph, items=items)
            graph = proposal if _fails(proposal, still_fails) else graph
    return graph


def _plain(leaf: Leaf) -> Leaf | None:
    return None if leaf.layout == ("plain",) else Leaf(leaf.values, ("plain",), leaf.requires_grad)


def _constant(leaf: Leaf) -> Leaf | None:
    return Leaf(leaf.values, leaf.layout) if leaf.requires_grad else None


def _rounded(leaf: Leaf) -> Leaf | None:
    if leaf.values.dtype.name not in FLOATS:
        return None
    rounded = np.asarray(np.round(leaf.values.astype(np.float64), 1)).astype(leaf.values.dtype)
    return Leaf(rounded, leaf.layout, leaf.requires_grad)


def _ones(leaf: Leaf) -> Leaf | None:
    if leaf.values.dtype.name not in FLOATS:
        return None
    return Leaf(np.ones_like(leaf.values), leaf.layout, leaf.requires_grad)


def _float32(leaf: Leaf) -> Leaf | None:
    return _as(leaf, "float32") if leaf.values.dtype.name in ("float16", "bfloat16") else None


def _float64(leaf: Leaf) -> Leaf | None:
    return _as(leaf, "float64") if leaf.values.dtype.name in FLOATS[:3] else None


def _as(leaf: Leaf, name: str) -> Leaf:
    return Leaf(leaf.values.astype(numpy_dtype(name)), leaf.layout, leaf.requires_grad)


def _with_shorter_axes(graph: Graph) -> Iterator[Graph]:
    if any("ag" in name and "mb" in name for name in graph.ops()):
        # Offsets would lie behind the ids, and torch writes outside its memory then.
        return
    lengths = {n for i in graph.items if isinstance(i, Leaf) for n in i.values.shape if n > 1}
    for old in sorted(lengths, reverse=True):
        for new in range(1, min(old, 3)):
            items = [_cut(i, old, new) if isinstance(i, Leaf) else i for i in graph.items]
            yield _copy(graph, items=items)


def _cut(leaf: Leaf, old: int, new: int) -> Leaf:
    index = tuple([slice(0, new) if n == old else slice(None) for n in leaf.values.shape])
    return Leaf(leaf.values[index].copy(), leaf.layout, leaf.requires_grad)


def _copy(graph: Graph, **changes: object) -> Graph:
    made = copy.copy(graph)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
