"""Text reaches a terminal through one module each for lines, tables and logs.

They show control characters as escapes. What else writes to a terminal would have to repeat that.
"""

import ast

import pytest

from tests.architecture.test_packages import ROOT, sources

# What prints, and the modules that may use it.
PRINTS = {
    "click.echo": {"gradmesh/cli/output.py"},
    "click.secho": set(),
    "print": {"protos/generate.py"},
    "rich.print": set(),
    "traceback.print_exc": set(),
    "traceback.print_exception": set(),
    "Console": set(),
    "Text.from_markup": set(),
    # Decodes the colours that pretty_line adds after it has escaped all text.
    "Text.from_ansi": {"gradmesh/launch/screen.py"},
}


def calls_of(tree: ast.AST) -> set[str]:
    """Return the names of all functions that a module calls or passes on."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
    return found


@pytest.mark.parametrize("package", ["gradmesh", "sdk", "services", "trainer", "protos", "engine"])
def test_only_these_modules_print(package: str) -> None:
    found = [
        (name, str(path.relative_to(ROOT)))
        for path in sources(package)
        for name in calls_of(ast.parse(path.read_text())) & PRINTS.keys()
        if str(path.relative_to(ROOT)) not in PRINTS[name]
    ]

    assert found == [], "print with gradmesh.cli.output, or a Terminal"
