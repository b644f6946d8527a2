"""The Dockerfiles and their packages, without an engine; tests/e2e builds and runs them."""

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy/docker").glob("*Dockerfile"))


REQUIREMENTS = sorted((ROOT / "deploy/docker").rglob("*.txt"))
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s\\]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def pins(file: str = "requirements.txt") -> dict[str, str]:
    text = (ROOT / "deploy/docker" / file).read_text()
    return {canonicalize_name(name): version for name, version, _ in PIN.findall(text)}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, file], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout) == (0, "")


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]

    assert [str(r) for r in wanted if pins().get(r.name, "0") not in r.specifier] == []


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda file: file.stem)
def test_every_package_of_an_image_has_its_hashes(file: Path) -> None:
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.M)

    assert PIN.sub("", text) == ""
    assert "//" not in text


def test_every_extra_is_pinned_and_agrees_with_the_others() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = defaultdict(set)
    for name, wanted in extras["optional-dependencies"].items():
        if name == "dev":
            continue
        found = pins(f"extras/{name}.txt")
        needed = [Requirement(text) for text in wanted]
        missing = [
            str(r) for r in needed if found.get(canonicalize_name(r.name), "0") not in r.specifier
        ]
        assert missing == [], name
        for package, pin in found.items():
            versions[package].add(pin)

    assert {package: found for package, found in versions.items() if len(found) > 1} == {}
    assert versions.keys() & pins().keys() == set()


def test_images_install_by_hash_only() -> None:
    for file in DOCKERFILES:
        text = file.read_text().replace("\\\n", " ")
        installs = re.findall(r"-m pip(?: --python \S+)? (?:install|wheel) (.*?)(?:&&|\n)", text)

        assert len(installs) >= 3, file.name
        for options in installs:
            by_hash = "--require-hashes" in options
            assert by_hash or ("--no-deps" in options and "--no-index" in options), options
        assert re.search(r"^ARG BASE_IMAGE=", text, re.M)
        assert "FROM ${BASE_IMAGE}" in text


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
