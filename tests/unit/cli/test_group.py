import subprocess
import sys

import click
import pytest

from gradmesh.cli import main
from gradmesh.cli.group import gradmesh


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert all(name in shown for name in gradmesh.list_commands(click.Context(gradmesh)))


def test_every_command_can_be_imported_and_asked_for_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in gradmesh.list_commands(click.Context(gradmesh)):
        assert main([name, "--help"]) == 0
        assert f"Usage: gradmesh {name}" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gradmesh.cli import main; main(['--help']); "
        "heavy = {'numpy', 'numba', 'grpc', 'rich', 'google.protobuf'} & set(sys.modules); "
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["sttus"], "Did you mean 'status'?"),
        (["coordinator", "--lissen", "x"], "--listen"),
        (["up", "extra"], "unexpected extra argument"),
        (["down", "--timeout-s", "soon"], "not a valid float"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_hint(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    assert main(arguments) == 2

    assert hint in capsys.readouterr().err


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert main(["--version"]) == 0

    assert "0.1.0" in capsys.readouterr().out
