"""Makes a graph from a seed: draws ops until it is deep enough, then the roots of backward."""

from __future__ import annotations

import itertools
from functools import cache

from tests.parity.fuzz import catalogue as catalogue
from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.execute import Machine, Raised
from tests.parity.fuzz.graph import Graph, Node, Ref
from tests.parity.fuzz.template import OPS

# Beyond this a few more ops only show overflow and lost digits.
_LARGE = 1e4


@cache
def _weighted() -> tuple[list[str], list[float]]:
    return list(OPS), list(itertools.accumulate(op.weight for op in OPS.values()))


def generate(seed: int) -> tuple[Graph, Machine]:
    """Return the graph of a seed and torch's run of it, forward and backward."""
    draw = Draw(seed)
    rng = draw.rng
    names, weights = _weighted()
    wanted = rng.randint(1, 8)
    # A graph with many ops that change tensors would mostly raise.
    changes = rng.choice((0, 0, 1, 2))
    done = tries = 0
    while done < wanted and tries < 40:
        tries += 1
        op = OPS[rng.choices(names, cum_weights=weights)[0]]
        if op.inplace and changes <= 0:
            continue
        args = op.draw(draw)
        if args is None:
            continue
        args = {name: args[name] for name in sorted(op.variables)}
        result = draw.append(Node(op.name, args, no_grad=draw.chance(0.03)))
        if op.inplace:
            changes -= 1
        elif isinstance(result, Raised):
            if draw.chance(0.5):
                draw.drop()
                continue
        elif isinstance(result, list) and not draw.is_odd and _is_wild(result):
            draw.drop()
            continue
        done += 1
    _choose_roots(draw)
    if draw.graph.roots:
        draw.machine.backward(draw.graph)
    return draw.graph, draw.machine


def _is_wild(result: list[object]) -> bool:
    for tensor in result:
        if tensor.is_floating_point() and tensor.numel():  # type: ignore[attr-defined]
            peak = float(tensor.detach().abs().max())  # type: ignore[attr-defined]
            if not peak < _LARGE:
                return True
    return False


def _choose_roots(draw: Draw) -> None:
    used: set[Ref] = set()
    made = [
        r
        for r in draw.refs
        if draw.of(r).requires_grad and isinstance(draw.graph.items[r.slot], Node)
    ]
    for _ in range(draw.pick(1, 1, 2, 3)):
        if made:
            used.add(draw.rng.choice(made[-4:]))
    draw.graph.roots = sorted(used, key=lambda r: (r.slot, r.part))
    draw.graph.mode = "grad" if draw.chance(0.2) else "each"
