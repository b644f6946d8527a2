"""Packages keep their structure: small files, complete `__all__`, imports by full name."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protos", "engine", "sdk", "services", "trainer", "benchmarks")
OWN = ("gradmesh", *PACKAGES, "tests", "examples")


def sources(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not re.search(r"_pb2(_grpc)?\.py$", path.name)
        and not any(part.is_symlink() for part in path.relative_to(ROOT).parents if part.name)
    ]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "gradmesh" else ("gradmesh", *parts))
    return name.removesuffix(".__init__")


def test_each_package_is_a_relative_symlink_in_the_import_package() -> None:
    for package in PACKAGES:
        link = ROOT / "gradmesh" / package

        assert link.is_symlink()
        assert link.readlink() == Path("..") / package


def test_no_file_is_longer_than_500_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources(*OWN)
        if (count := len(path.read_text().splitlines())) > 500
    }

    assert long == {}


@pytest.mark.parametrize(
    "path",
    [p for p in sources("gradmesh", *PACKAGES) if "\n__all__ = [" in p.read_text()],
    ids=module_of,
)
def test_exported_names_exist(path: Path) -> None:
    module = importlib.import_module(module_of(path))

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(set(module.__all__)) == len(module.__all__)


def test_every_module_imports() -> None:
    skipped = {"gradmesh.__main__", "gradmesh.protos.generate"}

    for path in sources("gradmesh", *PACKAGES):
        if module_of(path) not in skipped:
            importlib.import_module(module_of(path))


def test_nothing_pickles_or_evaluates() -> None:
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    found = []
    for path in sources("gradmesh", *PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import) and forbidden & {a.name for a in node.names}:
                found.append(path)
            if isinstance(node, ast.ImportFrom) and node.module in forbidden:
                found.append(path)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"eval", "exec"}:
                found.append(path)

    assert found == []
