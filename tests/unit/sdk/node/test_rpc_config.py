"""Modules that a process imports at its start."""

import sys
from pathlib import Path

import pytest

from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.setting import ConfigError


def test_modules_are_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_here.py").write_text("VALUE = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])

    RpcConfig(imports=("found_here",)).import_modules()

    assert sys.modules.pop("found_here").VALUE == 5


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_module cannot be imported: ModuleNotFoundError"):
        RpcConfig(imports=("no_such_module",)).import_modules()


@pytest.mark.parametrize("name", ["a b", "1x", "a..b", "a.py;"])
def test_names_that_are_not_modules_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected names of modules"):
        load([RpcConfig], flags={"rpc.imports": name})
