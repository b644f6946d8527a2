"""Every `xp` name and keyword in the engine exists in the installed cupy."""

import ast
import inspect
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradmesh.engine
from gradmesh.engine.autograd.ops.rows import SOURCE

ROOT = Path(gradmesh.engine.__file__).parent


def calls() -> Iterator[tuple[str, int, ast.Call, list[str]]]:
    """Yield each call of an xp function in the engine with its dotted name."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                names = dotted(node.func)
                if names:
                    yield str(path.relative_to(ROOT)), node.lineno, node, names


def dotted(node: ast.expr) -> list[str] | None:
    """Return ["add", "reduce"] for xp.add.reduce, also for array_module(x).add.reduce."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    direct = isinstance(node, ast.Name) and node.id == "xp"
    called = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("array_module", "cuda_module")
    )
    return names if names and (direct or called) else None


def keywords_of(function: Any) -> set[str] | None:
    """Return the keywords of a cupy function, None if it has no signature."""
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        found = re.search(r"\((.*?)\)", (function.__doc__ or "").split("\n\n")[0], re.S)
        ufunc = {"out", "dtype", "casting"} if hasattr(function, "nin") else set()
        return set(re.findall(r"(\w+)\s*(?==|,|$)", found.group(1))) | ufunc if found else None


def test_engine_uses_the_array_module() -> None:
    assert len(list(calls())) > 100


def test_every_name_and_keyword_exists_in_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    problems = []

    for path, line, call, names in calls():
        target: Any = cupy
        for name in names:
            target = getattr(target, name, None)
        if target is None:
            problems.append(f"{path}:{line}: cupy has no {'.'.join(names)}")
            continue
        known = keywords_of(target)
        for keyword in call.keywords:
            if known is not None and keyword.arg not in known:
                problems.append(f"{path}:{line}: cupy.{'.'.join(names)} takes no {keyword.arg}=")

    assert problems == []


def test_array_methods_of_the_stand_in_exist_in_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    from tests.cupy_stand_in import StandInArray

    own = [name for name in vars(StandInArray) if not name.startswith("_") and name != "host"]

    assert [name for name in own if not hasattr(cupy.ndarray, name)] == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_raw_kernels_compile(architecture: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    source = tmp_path / "kernels.cu"
    source.write_text(SOURCE)

    done = subprocess.run(
        [nvcc, f"-arch={architecture}", "--cubin", "-o", str(tmp_path / "out"), str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
