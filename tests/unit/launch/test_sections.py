import sys
from pathlib import Path

from gradmesh.launch.sections import command, flags, variables
from gradmesh.sdk.process.log import LogConfig
from gradmesh.sdk.process.network import SecurityConfig


def test_flags_are_written_for_the_known_sections_only() -> None:
    values = {
        "log.level": "debug",
        "security.token_file": Path("/a/b"),
        "security.allow_plaintext_token": True,
        "security.tls_require_client_certificate": False,
        "job.steps": 3,
    }

    assert flags(values, (LogConfig, SecurityConfig)) == (
        "--log-level",
        "debug",
        "--no-tls-require-client-certificate",
        "--token-file",
        "/a/b",
        "--allow-plaintext-token",
    )


def test_command_shares_the_configuration_file() -> None:
    argv = command("trainer", "--name", "t", config=Path("/x.toml"))

    assert argv == (
        *(sys.executable, "-m", "gradmesh", "trainer"),
        *("--config", "/x.toml", "--name", "t", "--lifeline"),
    )


def test_settings_become_what_processes_read() -> None:
    given = {
        "job.steps": 7,
        "data.shuffle": False,
        "data.columns": ("label", "dense"),
        "coordinator.state_dir": Path("/x"),
        "job.seed": None,
        "nobody.reads": 1,
    }

    assert variables(given) == {
        "GRADMESH_JOB_STEPS": "7",
        "GRADMESH_DATA_SHUFFLE": "false",
        "GRADMESH_DATA_COLUMNS": "label,dense",
        "GRADMESH_COORDINATOR_STATE_DIR": "/x",
    }
