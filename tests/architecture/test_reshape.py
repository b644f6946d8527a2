"""Nothing is written through a reshape that may copy: `view_of` gives the memory or refuses."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.kernel_writers import kernel_writers, root_name
from tests.architecture.test_packages import PACKAGES, ROOT, sources

COPYING = {"reshape", "ravel", "flatten"}
# Functions that write, and the places of the arguments they write to.
ELSEWHERE = {
    "copyto": {0},
    "put_along_axis": {0},
    "scatter_sub_scaled": {0},
    "copy_into": {0},
    "copy_out": {2},
    "copy_in": {0},
    "copy_marked": {3},
    "fold": {2},
    "segment_sum": {4},
}
WRITERS = {**ELSEWHERE, **kernel_writers()}


def may_copy(node: ast.expr) -> ast.expr | None:
    """Return the reshaped array, if the expression is a reshape or a part or choice of one."""
    if isinstance(node, ast.IfExp):
        return may_copy(node.body) or may_copy(node.orelse)
    if isinstance(node, ast.Subscript):
        return may_copy(node.value)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    if node.func.attr in COPYING:
        module = node.func.value
        is_function = isinstance(module, ast.Name) and module.id in ("np", "xp", "numpy")
        return node.args[0] if is_function and node.args else module
    return may_copy(node.func.value) if node.func.attr in ("view", "transpose") else None


def written(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose memory a statement or call writes to."""
    if isinstance(node, ast.Assign):
        yield from (t.value for t in node.targets if isinstance(t, ast.Subscript))
    elif isinstance(node, ast.AugAssign):
        yield node.target.value if isinstance(node.target, ast.Subscript) else node.target
    elif isinstance(node, ast.Call):
        yield from (k.value for k in node.keywords if k.arg == "out")
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        places = WRITERS.get(name, set())
        yield from (arg for place, arg in enumerate(node.args) if place in places)


def copies(function: ast.AST) -> set[str]:
    """Return the names that stand for a reshape of something else in a function."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            source, target = may_copy(node.value), node.targets[0]
            # After `x = x.reshape(...)` no other name could miss the write.
            if source is not None and isinstance(target, ast.Name) and not is_fresh(source, target):
                found.add(target.id)
    return found


def is_fresh(source: ast.expr, target: ast.Name) -> bool:
    """Return whether the reshaped array has no other name: it was made here, or is renamed."""
    return isinstance(source, ast.Call) or root_name(source) == target.id


def offences(tree: ast.AST) -> list[int]:
    lines = set()
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Module))]
    for function in functions:
        names = copies(function) if isinstance(function, ast.FunctionDef) else set()
        for node in ast.walk(function):
            for target in written(node):
                inner = target
                while isinstance(inner, ast.Subscript):
                    inner = inner.value
                if may_copy(target) is not None or getattr(inner, "id", None) in names:
                    lines.add(target.lineno)
    return sorted(lines)


@pytest.mark.parametrize(
    "source",
    [
        "x.reshape(-1)[0] = 1",
        "x.T.ravel()[i] += 1",
        "np.reshape(x, -1)[:] = 0",
        "xp.add(a, b, out=c.reshape(-1))",
        "scatter_add(out.reshape(-1, 1), places, rows)",
        "kernels.fused.bias_add(out if out.ndim == 2 else out.reshape(-1, n), bias, False)",
        "def f(x):\n    flat = x.reshape(-1)\n    flat += 1\n    return x",
        "def f(x):\n    flat = x.reshape(-1)\n    np.exp(x, out=flat)\n    return x",
    ],
)
def test_the_check_detects(source: str) -> None:
    assert offences(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "view_of(x, -1)[0] = 1",
        "x[...] = y.reshape(x.shape)",
        "def f(x):\n    x = x.reshape(-1)\n    x += 1\n    return x",
        "def f(n):\n    x = np.zeros(n).reshape(-1, 2)\n    x[0] = 1\n    return x",
    ],
)
def test_the_check_accepts(source: str) -> None:
    assert not offences(ast.parse(source))


def test_nothing_is_written_through_a_reshape_that_may_copy() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(*PACKAGES)
        for line in offences(ast.parse(path.read_text()))
    ]

    assert found == [], "write through gradmesh.engine.backend.view_of, which never copies"


def test_arguments_that_kernels_write_to_are_found() -> None:
    found = kernel_writers()

    assert found["bias_add"] == {0}
    assert found["relu_backward"] == {2, 3}
    assert found["relu_select"] == {2}
    assert found["channel_sums"] == {2, 3}
    assert found["nadam"] == {0, 1, 2}
    assert found["scatter_add"] == {0}
