import logging
from pathlib import Path

import click
import pytest

from gradmesh.cli.error_boundary import exit_code, run
from gradmesh.launch.errors import ClusterFailed, NoCluster, StateInUse
from gradmesh.protos import errors
from gradmesh.sdk.process.setting import AddressInUse, ConfigError, Problem


def raising(error: BaseException) -> click.Command:
    @click.command()
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError([Problem("a.b", "is wrong")]), 2),
        (AddressInUse("127.0.0.1:1", "coordinator.listen"), 2),
        (StateInUse(Path("/x"), 1), 2),
        (NoCluster.in_folder(Path("/x")), 3),
        (ClusterFailed("trainer-0 is dead", 4), 4),
        (errors.Unreachable("coordinator is away"), 3),
        (errors.DeadlineExceeded("too late"), 3),
        (errors.NameTaken("trainer-0 is there already"), 2),
        (errors.Unauthenticated("wrong token"), 2),
        (errors.InternalError("broken"), 4),
        (PermissionError(13, "Permission denied", "/x"), 4),
    ],
)
def test_foreseen_error_is_one_line_and_its_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raising(error), []) == code

    assert capsys.readouterr().err == f"error: {error}\n"


def test_every_error_of_the_catalogue_has_a_documented_code() -> None:
    todo, seen = [errors.MeshError], set()
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        seen.add(exit_code(kind("x")))

    assert seen <= {2, 3, 4}


def test_unforeseen_error_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raising(KeyError("x")), []) == 1

    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "this is a bug in gradmesh" in shown


def test_debug_level_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)
    try:
        run(raising(NoCluster.in_folder(Path("/x"))), [])
    finally:
        root.setLevel(before)

    assert "Traceback" in capsys.readouterr().err


def test_log_of_the_culprit_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(ClusterFailed("trainer-0 is dead", 4, ("last words",))), [])

    assert capsys.readouterr().err == "  │ last words\nerror: trainer-0 is dead\n"


def test_interrupt_is_130() -> None:
    assert run(raising(KeyboardInterrupt()), []) == 130
