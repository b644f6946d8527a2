"""Any gRPC client can call every rpc: here one in another process, without our codec and numpy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradmesh.protos.rpcs import REPEATABLE

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with the generated modules and nothing else of gradmesh."""
    for module in (ROOT / "protos").glob("*/v1/*_pb2*.py"):
        target = tmp_path / "gradmesh" / module.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, target)
    for folder in (tmp_path / "gradmesh", *(tmp_path / "gradmesh").rglob("*/")):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    return tmp_path


def test_a_plain_client_calls_every_rpc(stubs: Path, mesh: tuple[str, str]) -> None:
    script = Path(__file__).with_name("plain_client.py")

    done = subprocess.run(
        [sys.executable, "-I", script, stubs, *mesh],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == set(REPEATABLE)
