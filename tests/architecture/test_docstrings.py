"""Docstrings name the parameters that exist: a renamed one is renamed there, too."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.test_packages import PACKAGES, ROOT, sources

# From "Args:" to the next section, or to the end.
ARGS = re.compile(r"^Args:\n(.*?)(?=^\w+:$|\Z)", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"^    ([\w*][\w*, ]*):", re.MULTILINE)


def documented(docstring: str | None) -> set[str]:
    found = ARGS.search(docstring or "")
    names = NAME.findall(found.group(1)) if found else []
    return {name.strip(" *") for line in names for name in line.split(",")}


def parameters(function: ast.FunctionDef) -> set[str]:
    taken = function.args
    every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
    return {one.arg for one in every if one is not None}


def stale(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Yield each function or class that documents parameters it does not take."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            taken = parameters(node)
        elif isinstance(node, ast.ClassDef):
            makers = [
                one
                for one in node.body
                if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")
            ]
            fields = [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            taken = {*fields, *(name for maker in makers for name in parameters(maker))}
            if not taken:
                continue  # its base class takes them
        else:
            continue
        if unknown := documented(ast.get_docstring(node)) - taken:
            yield node.name, unknown


@pytest.mark.parametrize("package", ["gradmesh", *PACKAGES])
def test_documented_parameters_exist(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}": unknown
        for path in sources(package)
        for name, unknown in stale(ast.parse(path.read_text()))
    }

    assert found == {}


def test_the_check_finds_a_renamed_parameter() -> None:
    source = """
def send(to, data):
    \"\"\"Send.

    Args:
        peer: The receiver.
        data: The bytes.

    Raises:
        ValueError: Never.
    \"\"\"
"""
    assert list(stale(ast.parse(source))) == [("send", {"peer"})]
