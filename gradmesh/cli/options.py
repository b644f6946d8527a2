"""Command line options made from configuration sections."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click

from gradmesh.launch.sections import SECTION_NAMES
from gradmesh.sdk.process.config import Sections, load
from gradmesh.sdk.process.log import LogConfig
from gradmesh.sdk.process.metrics import MetricsConfig
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig
from gradmesh.sdk.process.process import LifecycleConfig, ProcessConfig
from gradmesh.sdk.process.setting import Section, Setting, settings

Command = Callable[..., int]


def configured(
    *sections: type[Section], without: tuple[str, ...] = (), file: str | None = None
) -> Callable[[Command], Command]:
    """Give a command one option per setting, and the effective configuration as `sections`.

    Args:
        sections: Sections that the command reads.
        without: Keys (`section.key`) without an option, because the command sets them.
        file: Name of the argument for the settings file; by default it is an option.
    """
    declared = [s for section in sections for s in settings(section) if s.key not in without]

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def call(config: Path | None, **parameters: Any) -> int:
            given = {s.key: parameters.pop(_parameter(s)) for s in declared}
            loaded = load(
                sections, flags=given, environment=os.environ, file=config, known=SECTION_NAMES
            )
            return function(sections=loaded, config=config, **parameters)

        command: Command = call
        for setting in reversed(declared):
            command = _option(setting)(command)
        return _config_option(command) if file is None else _config_argument(file)(command)

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def process_config(sections: Sections) -> ProcessConfig:
    """Bundle the sections that every process has."""
    return ProcessConfig(
        security=sections[SecurityConfig],
        transport=sections[TransportConfig],
        log=sections[LogConfig],
        metrics=sections[MetricsConfig],
        lifecycle=sections[LifecycleConfig],
    )


_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="GRADMESH_CONFIG",
    help="TOML file with the settings.  [env: GRADMESH_CONFIG]",
)


def _config_argument(name: str) -> Callable[[Command], Command]:
    path = click.Path(path_type=Path, exists=True, dir_okay=False)
    return click.argument("config", type=path, metavar=name)


def _option(setting: Setting) -> Callable[[Command], Command]:
    switch = setting.annotation is bool
    flag = f"{setting.flag}/--no-{setting.flag[2:]}" if switch else setting.flag
    # Always text: the loader converts, and reports all problems together.
    return click.option(
        flag,
        _parameter(setting),
        default=None,
        type=None if switch else str,
        metavar=None if switch else _metavar(setting.annotation),
        hidden=setting.rule.hidden,
        help=f"{setting.rule.help}  [env: {setting.variable}; default: {shown(setting.default)}]",
    )


def shown(value: object) -> str:
    """Return a default as a user would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(shown(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parameter(setting: Setting) -> str:
    return f"{setting.section}__{setting.name}"


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if get_origin(annotation) is tuple:
        return _metavar(get_args(annotation)[0]) + ",..."
    for kind in get_args(annotation):
        if kind is not NoneType:
            return _metavar(kind)
    names = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}
    return names[annotation]
