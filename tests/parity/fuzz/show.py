"""Prints a graph as a Python program that runs it in both libraries."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tests.parity.fuzz.graph import Dtype, Graph, Leaf, Node, Ref
from tests.parity.fuzz.template import OPS

_HEAD = """\
import numpy as np, torch, gradmesh as gm
from tests.parity.fuzz.graph import Leaf
from tests.parity.fuzz.execute import Machine
from tests.parity.fuzz.library import OURS, TORCH, numpy_dtype
from numpy import array, inf, nan
"""


def program(graph: Graph) -> str:
    """Return the program; it prints every value and gradient of one library and of the other."""
    lines = [_HEAD, "", "def run(library):"]
    lines.append("    t, f, n, apply = library.t, library.f, library.n, Machine(library).apply")
    single = _is_single(graph)
    spelled_apart = False
    for slot, item in enumerate(graph.items):
        if isinstance(item, Leaf):
            lines.append(f"    x{slot} = library.leaf({_leaf(item)})")
            continue
        op = OPS[item.op]
        ours, peer = _call(op.ours, item, single), _call(op.peer, item, single)
        if ours != peer:
            spelled_apart = True
            ours = f"({ours}) if library is OURS else ({peer})"
        if item.no_grad:
            lines.append(f"    with t.no_grad():\n        x{slot} = {ours}")
        else:
            lines.append(f"    x{slot} = {ours}")
    lines += _backward(graph, single)
    slots = [k for k, item in enumerate(graph.items) if isinstance(item, Node)]
    wanted = [k for k, i in enumerate(graph.items) if isinstance(i, Leaf) and i.requires_grad]
    shown = [f"x{k}" for k in slots] + [f"x{k}.grad" for k in wanted if graph.roots]
    lines.append("    print(" + ", ".join(shown) + ", sep='\\n')")
    lines += ["", "", "for library in (OURS, TORCH):", "    try:", "        run(library)"]
    lines += ["    except Exception as error:", "        print(repr(error))"]
    del spelled_apart
    return "\n".join(lines)


def _is_single(graph: Graph) -> dict[int, bool]:
    """Return by slot whether it made one tensor; a part of several prints as x3[1]."""
    from tests.parity.fuzz.execute import execute
    from tests.parity.fuzz.library import TORCH

    values = execute(graph, TORCH).values
    return {k: not isinstance(v, list) or len(v) == 1 for k, v in enumerate(values)}


def _backward(graph: Graph, single: dict[int, bool]) -> list[str]:
    lines = []
    for place, root in enumerate(graph.roots):
        name = _name(root, single)
        lines.append(
            f"    {name}.backward(Machine(library).gradient({graph.gradient_seed}, {place},"
            f" {name}), retain_graph=True)"
        )
    return lines


def _name(ref: Ref, single: dict[int, bool]) -> str:
    return f"x{ref.slot}" if single.get(ref.slot, True) else f"x{ref.slot}[{ref.part}]"


def _leaf(leaf: Leaf) -> str:
    name = leaf.values.dtype.name
    plain = leaf.values.astype(np.float64) if name == "bfloat16" else leaf.values
    with np.printoptions(threshold=10**6, precision=17, floatmode="unique", linewidth=10**6):
        text = " ".join(np.array2string(plain, separator=", ").split())
    if leaf.values.size == 0:
        text = f"np.zeros({leaf.values.shape})"
    elif name == "bool":
        text = text.replace("True", "1").replace("False", "0")
    made = f"np.array({text}).astype(numpy_dtype({name!r}))"
    return f"Leaf({made}, {leaf.layout!r}, requires_grad={leaf.requires_grad})"


def _call(text: str, node: Node, single: dict[int, bool]) -> str:
    """Return a template with the values of its variables put in."""
    tree = ast.parse(text, mode="eval")
    filled = _Fill(node.args, single).visit(tree)
    return ast.unparse(ast.fix_missing_locations(filled))


class _Fill(ast.NodeTransformer):
    def __init__(self, args: dict[str, Any], single: dict[int, bool]) -> None:
        self.args, self.single = args, single

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self.args:
            return node
        return ast.parse(self._value(self.args[node.id]), mode="eval").body

    def _value(self, value: Any) -> str:
        if isinstance(value, Ref):
            return _name(value, self.single)
        if isinstance(value, Dtype):
            return f"library.dtype({value.name!r})"
        if isinstance(value, list):
            return "[" + ", ".join(map(self._value, value)) + "]"
        if isinstance(value, tuple):
            return "(" + "".join(f"{self._value(v)}, " for v in value) + ")"
        return repr(value) if value is not Ellipsis else "..."
