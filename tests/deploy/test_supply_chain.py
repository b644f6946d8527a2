"""The checks of what gradmesh installs: hashes, known vulnerabilities, licences."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "supply_chain"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def index_page(*files: str) -> str:
    links = (f'<a href="../{file}#sha256={n:064x}">{file}</a>' for n, file in enumerate(files))
    return "<html><body>" + "<br/>".join(links) + "</body></html>"


def test_hashes_are_those_of_the_wheels_that_images_can_install() -> None:
    page = index_page(
        "numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.4.6-cp312-cp312-manylinux_2_28_aarch64.whl",
        "numpy-2.4.5-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.4.6-cp311-cp311-win_amd64.whl",
        "numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl",
        "numpy-2.4.6-cp39-cp39-manylinux_2_28_x86_64.whl",
        "numpy-2.4.6-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "numpy-2.4.6.tar.gz",
        "numpy-2.4.6-py3-none-any.whl",
        "numpy-2.4.6-cp37-abi3-manylinux_2_28_x86_64.whl",
    )

    found = script("pin_packages").hashes_of(page, "2.4.6")

    assert found == [f"{number:064x}" for number in (0, 1, 8, 9)]


def test_a_file_without_a_hash_and_a_missing_version_are_refused() -> None:
    pins = script("pin_packages")

    with pytest.raises(LookupError, match="no sha256"):
        pins.hashes_of('<a href="x-1-py3-none-any.whl">x</a>', "1")
    with pytest.raises(LookupError, match="no wheel of version 2"):
        pins.hashes_of(index_page("x-1-py3-none-any.whl"), "2")


def audit(tmp_path: Path, output: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run the audit with a pip-audit that prints a text."""
    package = tmp_path / "pip_audit"
    package.mkdir()
    (package / "__init__.py").touch()
    lines = ["import sys", f"print({output!r})", "print('no route', file=sys.stderr)"]
    (package / "__main__.py").write_text("\n".join([*lines, f"sys.exit({code})"]))
    return subprocess.run(
        [sys.executable, FOLDER / "audit.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )


def answer(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages})


def test_a_known_vulnerability_fails_the_audit(tmp_path: Path) -> None:
    vulnerable = {"id": "PYSEC-2026-1", "fix_versions": ["2.0"]}
    done = audit(tmp_path, answer({"name": "x", "version": "1.0", "vulns": [vulnerable]}), 1)

    assert done.returncode == 1
    assert "x 1.0: PYSEC-2026-1; fixed in: 2.0" in done.stderr


def test_packages_without_one_pass(tmp_path: Path) -> None:
    done = audit(tmp_path, answer({"name": "x", "version": "1.0", "vulns": []}))

    assert (done.returncode, done.stderr) == (0, "")
    assert "1 packages audited, no known vulnerabilities" in done.stdout


@pytest.mark.parametrize("output", ["", answer({"name": "x", "skip_reason": "not found"})])
def test_an_audit_of_nothing_passes_loudly(tmp_path: Path, output: str) -> None:
    done = audit(tmp_path, output, 1)

    assert (done.returncode, done.stdout) == (0, "")
    assert "=== make audit: NOTHING WAS AUDITED" in done.stderr


def test_an_audit_of_some_names_the_others(tmp_path: Path) -> None:
    known = {"name": "x", "version": "1.0", "vulns": []}
    done = audit(tmp_path, answer(known, {"name": "y", "skip_reason": "not found"}))

    assert done.returncode == 0
    assert "1 of 2 packages WERE NOT AUDITED: the service does not know y" in done.stderr


def test_the_list_of_licences_is_current_and_all_are_allowed() -> None:
    command = [sys.executable, FOLDER / "licences.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("licence", "refused"),
    [
        ("MIT", []),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", []),
        ("MIT AND GPL-3.0-only", ["GPL-3.0-only"]),
        ("Proprietary", ["Proprietary"]),
        ("none is declared", ["none is declared"]),
    ],
)
def test_other_licences_are_refused(licence: str, refused: list[str]) -> None:
    assert script("licences").licences_refused(licence) == refused
