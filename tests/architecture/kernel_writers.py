"""The arguments that kernels write to, read from their code."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.architecture.test_packages import ROOT

KERNELS = ROOT / "engine/kernels"
Writers = dict[str, frozenset[int]]


def root_name(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets and values; of `a, b = c, d` one by one."""
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign):
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(target.elts, value.elts, strict=True)
            else:
                yield target, value


def handed_over(function: ast.FunctionDef, writers: Writers) -> Iterator[ast.expr]:
    """Yield the arguments that a function passes to functions that write to them."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            places = writers.get(name, ())
            yield from (given for place, given in enumerate(node.args) if place in places)


def written(function: ast.FunctionDef, writers: Writers) -> frozenset[int]:
    """Return the places of the arguments that a function writes to, or to a row of."""
    whole = {}
    names = {root_name(given) for given in handed_over(function, writers)}
    for target, value in assignments(function):
        if isinstance(target, ast.Subscript):
            names.add(root_name(target))
        elif isinstance(target, ast.Name) and isinstance(value, ast.Subscript):
            whole[target.id] = root_name(value)
    names = {whole.get(name, name) for name in names}
    return frozenset(i for i, given in enumerate(function.args.args) if given.arg in names)


@cache
def kernel_writers() -> Writers:
    trees = [ast.parse(path.read_text()) for path in KERNELS.glob("*.py")]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    found: Writers = {}
    # Repeat until a fixed point: a kernel may write through another one.
    while (after := {f.name: places for f in functions if (places := written(f, found))}) != found:
        found = after
    return found
