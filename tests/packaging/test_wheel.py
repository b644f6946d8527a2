"""The wheel holds all packages, works from anywhere, and is not shadowed by a user's files."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protos", "engine", "sdk", "services", "trainer", "benchmarks")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    source = target / "source"
    _copy_tracked(source)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", target, source],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = target.glob("*.whl")
    return built


def _tracked() -> list[str]:
    """Return the files that git tracks or would add: the tree without its caches."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).exists()]


def _copy_tracked(target: Path) -> None:
    for name in _tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / name
        if source.is_symlink():
            (target / name).symlink_to(source.readlink())
        else:
            (target / name).write_bytes(source.read_bytes())


@pytest.mark.timeout(600)
def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    kinds = (".py", ".pyi", ".proto", ".typed", ".binpb")
    expected = {
        name if name.startswith("gradmesh/") else f"gradmesh/{name}"
        for name in _tracked()
        if name.split("/")[0] in ("gradmesh", *PACKAGES) and name.endswith(kinds)
    }
    # The launcher includes the manifests of deploy/base through a link.
    expected |= {
        f"gradmesh/launch/kubernetes/base/{Path(name).name}"
        for name in _tracked()
        if name.startswith("deploy/base/")
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert held == expected


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; the dependencies are those of the test run."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return home / "bin" / "python"


def _run(python: Path, *args: str, cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), *args], cwd=cwd, env=clean, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SHADOWED = """
import gradmesh as gm, trainer, services
import gradmesh.trainer, gradmesh.services, pathlib, sys
assert trainer.MINE and services.MINE
assert "site-packages" in gradmesh.trainer.__file__, gradmesh.trainer.__file__
with gm.LocalCluster(parameter_servers=1) as cluster, gm.connect(cluster.address) as mesh:
    table = mesh.table("t", rows=10, dim=4, optimizer=gm.optim.SGD(lr=1.0))
    with gm.autograd.context(mesh) as ctx:
        gm.autograd.backward(ctx, [gm.nn.RemoteEmbedding(table)([1, 2]).sum()])
        before = table.lookup([1, 2])
        gm.autograd.apply(ctx)
    assert (table.lookup([1, 2]) == before - 1).all()
print("trained")
"""


@pytest.mark.timeout(600)
def test_a_users_own_trainer_and_services_do_not_shadow_ours(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "trainer.py").write_text("MINE = True\n")
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "mine.py").write_text(SHADOWED)

    assert "trained" in _run(installed, "mine.py", cwd=tmp_path)


@pytest.mark.timeout(600)
def test_demo_runs_from_the_wheel_in_another_folder(installed: Path, tmp_path: Path) -> None:
    shown = _run(installed, "-m", "gradmesh", "demo", "--steps", "20", cwd=tmp_path)

    assert "AUC" in shown
    assert list(tmp_path.iterdir()) == []
