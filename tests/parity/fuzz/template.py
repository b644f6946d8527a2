"""The registry of ops: one entry a call, written once as text for both libraries.

A template is an expression over `t` (the library), `f` (its functions), `n` (its layers), `apply`
(fill a layer and call it) and the op's own variables. It is compiled once, prints with its values
put in, and the public names it covers are read from it: `c` is the variable for a Python number.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Callable
from typing import Any

import gradmesh as gm
from tests.parity.fuzz.names import has

NAMESPACES = ("t", "f", "n", "apply")
_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}
_COMPARE = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_UNARY = {ast.USub: "neg", ast.Invert: "invert", ast.UAdd: "pos"}
_CALLS = {"len", "float", "int", "bool", "abs", "repr", "iter", "list"}
_PREFIX = {"t": "gm", "f": "nn.functional", "n": "nn"}


@dataclasses.dataclass(frozen=True)
class Op:
    """One call of both libraries, and how to draw its arguments."""

    name: str
    ours: str
    peer: str
    draw: Callable[[Any], dict[str, Any] | None]
    weight: float
    inplace: bool
    call: Callable[..., Any]
    peer_call: Callable[..., Any]
    covers: frozenset[str]
    variables: frozenset[str]


OPS: dict[str, Op] = {}


def op(
    name: str,
    ours: str,
    draw: Callable[[Any], dict[str, Any] | None],
    *,
    peer: str | None = None,
    weight: float = 1.0,
    inplace: bool = False,
) -> None:
    """Register an op; what the engine lacks is left out: loops spell ops in all of torch's ways.

    Args:
        name: Its name in the registry.
        ours: The call, as a template.
        draw: Draws the variables of the template from what a graph has; None to draw another op.
        peer: The call as torch spells it, where it differs.
        weight: How often it is drawn, relative to the others.
        inplace: Whether it changes a tensor.
    """
    if name in OPS:
        raise ValueError(f"two ops are called {name!r}")
    covers = frozenset(covered(ours))
    if not all(has(gm, public) for public in covers):
        return
    theirs = ours if peer is None else peer
    names = variables(ours) | variables(theirs)
    OPS[name] = Op(
        name,
        ours,
        theirs,
        draw,
        weight,
        inplace,
        _compiled(ours, names),
        _compiled(theirs, names),
        covers,
        frozenset(names),
    )


def variables(text: str) -> set[str]:
    """Return the variables of a template."""
    tree = ast.parse(text, mode="eval")
    bound = {
        a.arg for node in ast.walk(tree) if isinstance(node, ast.Lambda) for a in node.args.args
    }
    bound |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {n for n in found - bound if n not in NAMESPACES and not hasattr(builtins, n)} - {
        "operator"
    }


def _compiled(text: str, names: set[str]) -> Callable[..., Any]:
    import operator

    arguments = ", ".join([*NAMESPACES, *sorted(names)])
    made: Callable[..., Any] = eval(f"lambda {arguments}: {text}", {"operator": operator})
    return made


def covered(text: str) -> set[str]:
    """Return the public names that a template calls, `Tensor.` before those of tensors."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Attribute):
            found.add(_attribute(node))
        elif isinstance(node, ast.BinOp):
            number = isinstance(node.left, ast.Name) and node.left.id == "c"
            found.add(f"Tensor.__{'r' if number else ''}{_BINARY[type(node.op)]}__")
        elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            found.add(f"Tensor.__{_UNARY[type(node.op)]}__")
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
            found.add(f"Tensor.__{_COMPARE[type(node.ops[0])]}__")
        elif isinstance(node, ast.Subscript):
            found.add("Tensor.__getitem__")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.update({f"Tensor.__{node.func.id}__"} if node.func.id in _CALLS else ())
    return found - {""}


def _is_foreign(function: ast.expr) -> bool:
    """Return whether a call makes a layer or a Python object, whose methods are not a tensor's."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in ("n", "str")


def _attribute(node: ast.Attribute) -> str:
    chain = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        chain.append(inner.attr)
        inner = inner.value
    root = inner.id if isinstance(inner, ast.Name) else ""
    if isinstance(inner, ast.Call) and _is_foreign(inner.func):
        return ""
    if root == "operator":
        return f"Tensor.__{chain[0].rstrip('_')}__"
    if root in _PREFIX:
        return ".".join([_PREFIX[root], *reversed(chain)])
    return f"Tensor.{node.attr}"
