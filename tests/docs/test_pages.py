"""Every code block of the docs runs, every link has a target, every make target exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gradmesh.cli.group import gradmesh

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")

BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block)

    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
    )

    assert done.returncode == 0, done.stderr


def test_readme_example_is_short_and_learns(tmp_path: Path) -> None:
    (block,) = BLOCK.findall((ROOT / "README.md").read_text())
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith("import")]

    assert len(lines) <= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []


FILE = re.compile(r"`([a-z_]+(?:/[a-z_0-9.]+)*\.(?:py|proto|toml))`")
PAGES_OF_FILES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "docs" / "architecture.md"]


@pytest.mark.parametrize("page", PAGES_OF_FILES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    missing = []
    before = Path()
    for line in page.read_text().splitlines():
        for name in FILE.findall(line):
            # A file may be named from the folder, or the package, of the one before it.
            folders = [Path(), before.parent, Path(*before.parts[:2])]
            found = next((f / name for f in folders if (ROOT / f / name).exists()), None)
            if found is None and "/" in name:
                missing.append(name)
            before = found or before
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"\btests/[\w/*]+(?:\.py)?", page.read_text())

    assert [name for name in named if not any(ROOT.glob(name.rstrip("/")))] == []


def test_every_promise_names_the_test_that_shows_it() -> None:
    lines = (ROOT / "docs/guarantees.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]

    assert len(rows) > 25
    for _, _, shown_by in rows:
        assert re.search(r"tests/[\w/]+\.py", shown_by) or "all tests" in shown_by, shown_by


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(), re.M))
    targets |= {"render"}
    text = page.read_text()
    named = set(re.findall(r"^    make ([a-z0-9-]+)", text, re.M))
    named |= {w for words in re.findall(r"`make ([a-z0-9 -]+)`", text) for w in words.split()}

    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_gradmesh_commands_exist(page: Path) -> None:
    known = set(gradmesh.list_commands(click.Context(gradmesh)))
    named = set(re.findall(r"(?:`|^    )gradmesh ([a-z][a-z-]+)", page.read_text(), re.M))

    assert named - known == set()
