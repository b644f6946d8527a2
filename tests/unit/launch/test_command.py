import sys
from pathlib import Path

from gradmesh.launch.command import command, flags
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
