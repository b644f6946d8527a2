"""Whether a cluster needs a token that its launcher makes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmesh.sdk.process.bounded_file import read_toml

# Settings of [security] by which callers are authenticated, or the user declines that.
_AUTHENTICATION = ("token_file", "tokens_file", "tls_require_client_certificate", "insecure")
_UNSET = ("", "none", "0", "false", "no", "off")


def configured(
    section: str,
    name: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    config: Path | None,
) -> Any:
    """Return the value of a setting in the processes of a cluster, or None if it has its default.

    Args:
        section: Section of the setting.
        name: Its name.
        settings: Values by `section.key`; the strongest.
        environment: Variables that the processes get.
        config: TOML file that all processes read.
    """
    if (value := settings.get(f"{section}.{name}")) is not None:
        return value
    variable = f"GRADMESH_{section}_{name}".upper()
    if variable in environment:
        return environment[variable]
    try:
        tables = read_toml(config) if config is not None else {}
    except (OSError, ValueError):
        return None  # the processes report its errors
    table = tables.get(section)
    return table.get(name) if isinstance(table, dict) else None


def needs_token(
    settings: Mapping[str, Any], environment: Mapping[str, str], config: Path | None
) -> bool:
    """Return whether callers would not be authenticated, and the user did not ask for that.

    Args:
        settings: As for `configured`.
        environment: As for `configured`.
        config: As for `configured`.
    """
    values = (configured("security", n, settings, environment, config) for n in _AUTHENTICATION)
    return all(value is None or str(value).lower() in _UNSET for value in values)
