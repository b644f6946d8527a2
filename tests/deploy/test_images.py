"""The Dockerfiles and their packages, without an engine; tests/e2e builds and runs them."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy/docker").glob("*Dockerfile"))


def pins() -> dict[str, str]:
    lines = (ROOT / "deploy/docker/requirements.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {name.lower().replace("_", "-"): pinned for name, pinned in pairs}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, file], capture_output=True, text=True, timeout=50)

    assert (done.returncode, done.stdout) == (0, "")


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]

    assert [str(r) for r in wanted if pins().get(r.name, "0") not in r.specifier] == []


def test_images_run_unprivileged_and_report_health() -> None:
    for file in DOCKERFILES:
        text = file.read_text()
        final = text[text.rindex("\nFROM ") :]

        assert re.search(r"^USER 10001:10001$", final, re.M), file.name
        assert re.search(r"^HEALTHCHECK .* CMD ", final, re.M), file.name
        assert "apt-get install" not in final or "--no-install-recommends" in final, file.name
        assert ":latest" not in text, file.name


def test_the_tag_is_the_version_everywhere() -> None:
    tag = f"gradmesh:{version('gradmesh')}"

    assert f"GRADMESH_IMAGE={tag}\n" in (ROOT / ".env").read_text()
    assert f"${{GRADMESH_IMAGE:-{tag}}}" in (ROOT / "docker-compose.yml").read_text()


def test_the_build_context_holds_the_packages_and_nothing_else() -> None:
    kept = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    packages = [path.name for path in (ROOT / "gradmesh").iterdir() if path.is_symlink()]

    assert sorted(kept) == sorted(
        [
            "LICENSE",
            "README.md",
            "deploy/base",
            "deploy/docker",
            "gradmesh",
            "pyproject.toml",
            *packages,
        ]
    )
