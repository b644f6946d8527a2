"""Command lines of the processes of a cluster."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradmesh.sdk.process.setting import Section, settings


def command(name: str, *arguments: str, config: Path | None = None) -> tuple[str, ...]:
    """Return the command line of a gradmesh process under supervision.

    Args:
        name: The command, such as `coordinator`.
        arguments: Its flags.
        config: The configuration file that the whole cluster shares.
    """
    shared = () if config is None else ("--config", str(config.absolute()))
    return (sys.executable, "-m", "gradmesh", name, *shared, *arguments, "--lifeline")


def flags(values: Mapping[str, Any], sections: Iterable[type[Section]]) -> tuple[str, ...]:
    """Write settings as flags.

    Args:
        values: By `section.key`; those of other sections are left out.
        sections: What the command understands.

    Returns:
        Flags and values, as the command line takes them.
    """
    arguments: list[str] = []
    for section in sections:
        for declared in settings(section):
            value = values.get(declared.key)
            if isinstance(value, bool):
                arguments.append(declared.flag if value else "--no-" + declared.flag[2:])
            elif isinstance(value, tuple | list):
                arguments += [declared.flag, ",".join(str(item) for item in value)]
            elif value is not None:
                arguments += [declared.flag, str(value)]
    return tuple(arguments)
