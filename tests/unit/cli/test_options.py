from pathlib import Path

import click
import pytest

from gradmesh.cli import error_boundary
from gradmesh.cli.options import configured, process_config
from gradmesh.launch.sections import process_sections
from gradmesh.sdk.process.config import Sections
from gradmesh.services.config import CoordinatorConfig


@pytest.fixture
def seen() -> list[Sections]:
    return []


@pytest.fixture
def command(seen: list[Sections], monkeypatch: pytest.MonkeyPatch) -> click.Command:
    monkeypatch.delenv("GRADMESH_CONFIG", raising=False)

    @click.command()
    @configured(CoordinatorConfig, *process_sections(), without=("coordinator.trainers",))
    def probe(sections: Sections, config: Path | None) -> int:
        seen.append(sections)
        return 0

    return probe


def test_flags_variables_and_file_meet(
    command: click.Command, seen: list[Sections], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[coordinator]\nlease_s = 3\nserver_threads = 3\ntrainers = 3\n[job]\nx = 1\n")
    monkeypatch.setenv("GRADMESH_COORDINATOR_LEASE_S", "4")
    monkeypatch.setenv("GRADMESH_COORDINATOR_SERVER_THREADS", "4")

    code = error_boundary.run(command, ["--config", str(file), "--lease-s", "5", "--lifeline"])

    config, process = seen[0][CoordinatorConfig], process_config(seen[0])
    assert code == 0
    assert (config.lease_s, config.server_threads, config.trainers) == (5.0, 4, 3)
    assert process.lifecycle.lifeline is True


def test_flags_have_a_negation(command: click.Command, seen: list[Sections]) -> None:
    error_boundary.run(command, ["--allow-plaintext-token"])
    error_boundary.run(command, ["--no-allow-plaintext-token"])

    allowed = [process_config(sections).security.allow_plaintext_token for sections in seen]
    assert allowed == [True, False]


def test_all_problems_are_shown_and_exit_with_2(
    command: click.Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADMESH_COORDINATOR_LEESE_S", "4")

    code = error_boundary.run(command, ["--listen", "x", "--log-level", "loud"])

    assert code == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: GRADMESH_COORDINATOR_LEESE_S: unknown variable; did you mean "
        "'GRADMESH_COORDINATOR_LEASE_S'? (environment)",
        "error: coordinator.listen: expected host:port such as '127.0.0.1:7070', got 'x' "
        "(flag --listen)",
        "error: log.level: expected one of debug, info, warning, error, got 'loud' "
        "(flag --log-level)",
    ]


def test_settings_of_the_command_itself_have_no_flag(command: click.Command) -> None:
    assert error_boundary.run(command, ["--trainers", "1"]) == 2


def test_help_names_variable_and_default(
    command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    error_boundary.run(command, ["--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert "GRADMESH_COORDINATOR_LISTEN; default: 127.0.0.1:7070" in shown
    assert "--lifeline" not in shown
