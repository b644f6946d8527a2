"""The secrets that a job's file names: they are never copied with the file.

A job's file is shown, sent and stored as plain text. The files of tokens and private keys that its
[security] table names stay where they are; processes elsewhere get theirs by other ways.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmesh.sdk.process.bounded_file import read_toml
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError, Problem

_SECTION = SecurityConfig.section
_SUFFIX = "_file"


def read_job_file(job: Path) -> dict[str, Any]:
    """Return the tables of a job's file.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return read_toml(job)
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(f"file {job}", str(error))]) from error


def refuse_secrets(job: Path, tables: Mapping[str, Any], remedy: str) -> None:
    """Check that a job's file, which is sent to processes elsewhere, names no secrets.

    Args:
        job: The file.
        tables: Its content.
        remedy: How these processes get secrets.

    Raises:
        ConfigError: It names some.
    """
    section = tables.get(_SECTION)
    named = section.items() if isinstance(section, dict) else ()
    text = f"names a secret, and secrets are not sent with a job's file; {remedy}"
    problems = [
        Problem(f"{_SECTION}.{key}", text, f"file {job}")
        for key, value in named
        if key.endswith(_SUFFIX) and value not in ("", "none")
    ]
    if problems:
        raise ConfigError(problems)


def secret_files(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files of secrets in settings by `section.key`."""
    return [
        Path(value)
        for key, value in settings.items()
        if key.startswith(f"{_SECTION}.") and key.endswith(_SUFFIX) and value is not None
    ]
