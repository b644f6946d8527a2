"""The secrets that a job's file names: they are never copied with the file.

A job's file is shown, sent and stored as plain text. The files of tokens and private keys that its
[security] table names stay where they are; processes elsewhere get theirs by other ways.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

from gradmesh.base_error import GradmeshError
from gradmesh.sdk.process.bounded_file import read_toml
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError, Problem

_SECTION = SecurityConfig.section
_SUFFIX = "_file"


@final
class SecretsInJobFile(PermissionError, GradmeshError):
    """A job's file names secrets, and would be sent to processes elsewhere.

    Args:
        job: The file.
        keys: The settings that name secrets.
        remedy: What to do about it.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, job: Path, keys: list[str], remedy: str) -> None:
        super().__init__(
            f"[{_SECTION}] of {job} names {', '.join(keys)}, and secrets are not sent with a job's "
            f"file; {remedy}"
        )


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
    """Check that a job's file names no secrets.

    Raises:
        SecretsInJobFile: It does.
    """
    section = tables.get(_SECTION)
    named = section.items() if isinstance(section, dict) else ()
    keys = [key for key, value in named if key.endswith(_SUFFIX) and value not in ("", "none")]
    if keys:
        raise SecretsInJobFile(job, keys, remedy)


def secret_files(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files of secrets in settings by `section.key`."""
    return [
        Path(value)
        for key, value in settings.items()
        if key.startswith(f"{_SECTION}.") and key.endswith(_SUFFIX) and value is not None
    ]
