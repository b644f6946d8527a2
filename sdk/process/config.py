"""Read the configuration once: flag over environment over TOML file over default.

Text of flags and variables and TOML values become the types that the settings declare. All problems
are collected and raised together, so that a user corrects a configuration in one go.
"""

import dataclasses
import difflib
import json
import math
import os
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, final, get_args, get_origin

from gradmesh.sdk.process.bounded_file import read_toml
from gradmesh.sdk.process.setting import (
    ConfigError,
    Problem,
    Section,
    Setting,
    SettingRule,
    settings,
)

# Settings become int64 fields of messages and shapes of arrays.
_MOST = 1 << 63
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

_MOST_SHOWN = 200
# Longer texts are no misspelled name, and comparing them takes long.
_MOST_COMPARED = 100


def convert(annotation: Any, raw: object, rule: SettingRule) -> Any:
    """Convert one value and check it against its rule.

    Args:
        annotation: The declared type: bool, int, float, str, Path, Literal, `tuple[T, ...]` or
            one of these with `| None`.
        raw: Text from a flag or variable (any type is read from text), or a TOML value.
        rule: Range and check of the setting.

    Returns:
        The value of the setting.

    Raises:
        ValueError: States what was expected and what was given.
    """
    inner, optional = _without_none(annotation)
    if optional and (raw is None or raw == "" or raw == "none"):
        return None
    value = _typed(inner, raw)
    for item in value if isinstance(value, tuple) else (value,):
        _in_range(item, rule)
    return value if rule.check is None else rule.check(value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` when a known name is similar, else an empty string."""
    if len(name) > _MOST_COMPARED:
        return ""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = [arg for arg in get_args(annotation) if arg is not types.NoneType]
        return inner, True
    return annotation, False


def _typed(annotation: Any, raw: object) -> Any:
    origin = get_origin(annotation)
    if origin is Literal:
        return _choice(get_args(annotation), raw)
    if origin is tuple:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list):
            raise ValueError(f"expected a list, got {_shown(raw)}")
        return tuple(_typed(get_args(annotation)[0], part) for part in parts if part != "")
    return _SCALARS[annotation](raw)


def _choice(choices: tuple[str, ...], raw: object) -> str:
    if raw in choices:
        return str(raw)
    hint = did_you_mean(str(raw), choices)
    raise ValueError(f"expected one of {', '.join(choices)}, got {_shown(raw)}{hint}")


def _shown(raw: object) -> str:
    """Return a value for a message, shortened: it may be as long as the file it comes from."""
    try:
        text = f"{raw:g}" if isinstance(raw, float) else repr(raw)
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = raw.strip().lower() if isinstance(raw, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(f"expected true or false, got {_shown(raw)}")


def _integer(raw: object) -> int:
    if isinstance(raw, str):
        try:
            return int(raw)
        except ValueError:
            pass
    elif isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    raise ValueError(f"expected a whole number, got {_shown(raw)}")


def _number(raw: object) -> float:
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        try:
            value = float(raw)
        except (ValueError, OverflowError):
            value = math.nan
        if math.isfinite(value):
            return value
    raise ValueError(f"expected a number, got {_shown(raw)}")


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"expected text, got {_shown(raw)}")
    try:
        encoded = os.fsencode(raw)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        # JSON can hold them; no name of a file can.
        raise ValueError(f"expected text without NUL and lone surrogates, got {_shown(raw)}")
    return raw


def _path(raw: object) -> Path:
    text = str(raw) if isinstance(raw, Path) else _text(raw)
    if not text:
        raise ValueError("expected a path, got an empty text")
    return _expanded(text)


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"expected a path, got {text!r}: {error}") from None


_SCALARS: dict[Any, Any] = {
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
    Path: _path,
}


def _in_range(value: object, rule: SettingRule) -> None:
    if not isinstance(value, int | float):
        return
    if isinstance(value, int) and abs(value) >= _MOST:
        raise ValueError("expected a number of 64 bits")
    if rule.minimum is not None and value < rule.minimum:
        raise ValueError(f"expected at least {rule.minimum:g}, got {_shown(value)}")
    if rule.maximum is not None and value > rule.maximum:
        raise ValueError(f"expected at most {rule.maximum:g}, got {_shown(value)}")


S = TypeVar("S", bound=Section)

# Variables that the command line itself reads.
RESERVED = frozenset(
    f"GRADMESH_{name}"
    for name in ("CONFIG", "CONTEXT", "IMAGE", "NAME", "NAMESPACE", "ON", "STATE")
)

# Kubernetes and Docker links describe a service called gradmesh-coordinator by variables such as
# GRADMESH_COORDINATOR_PORT_7070_TCP_ADDR. They are neither settings nor mistakes of the user.
_LINK = re.compile(r"GRADMESH_\w+_(PORT(_\d+_\w+)?|SERVICE_(HOST|PORT\w*))")


@final
class Sections:
    """The effective configuration: one value per section.

    Args:
        values: The sections that were loaded.
        sources: The source of each `section.key` that is not at its default.
    """

    def __init__(self, values: Iterable[Section], sources: Mapping[str, str]) -> None:
        self._values = {type(value): value for value in values}
        self.sources = dict(sources)

    def __getitem__(self, section: type[S]) -> S:
        """Return a section; KeyError when it was not loaded."""
        return cast(S, self._values[section])

    def __contains__(self, section: object) -> bool:
        return section in self._values

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by section and key; secrets appear as file paths only."""
        return {value.section: section_as_dict(value) for value in self._values.values()}

    def as_json(self) -> str:
        """Return the effective configuration as one JSON line."""
        return json.dumps(self.as_dict(), sort_keys=True)


def section_as_dict(section: Section) -> dict[str, Any]:
    """Return the fields of a section as plain values, paths as text."""
    fields = dataclasses.asdict(cast(Any, section))
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return str(value) if isinstance(value, Path) else value


def load(
    sections: Sequence[type[Section]],
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    known: Iterable[str] = (),
) -> Sections:
    """Read the sections from their sources.

    Args:
        sections: What to load.
        flags: Values from the command line by `section.key`; None means not given.
        environment: Variables; those that begin with GRADMESH_ must be known.
        file: A TOML file with one table per section.
        known: Names of further sections that file and environment may contain.

    Returns:
        The effective configuration.

    Raises:
        ConfigError: With all problems found.
    """
    reader = _Reader(sections, known)
    reader.read_file(file)
    reader.read_environment(environment or {})
    reader.read_flags(flags or {})
    return reader.finish()


@final
class _Reader:
    """Collects raw values from the weakest source to the strongest, and all problems."""

    def __init__(self, sections: Sequence[type[Section]], known: Iterable[str]) -> None:
        self._sections = sections
        self._settings = {s.key: s for section in sections for s in settings(section)}
        self._wanted = {section.section for section in sections}
        self._known = self._wanted | set(known)
        self._raw: dict[str, tuple[object, str]] = {}
        self._problems: list[Problem] = []

    def read_file(self, file: Path | None) -> None:
        if file is None:
            return
        source = f"file {file}"
        for name, table in self._tables(file).items():
            if name not in self._known:
                hint = did_you_mean(name, self._known)
                self._problems.append(Problem(f"[{name}]", f"unknown section{hint}", source))
            elif not isinstance(table, dict):
                self._problems.append(Problem(name, f"expected a table [{name}]", source))
            elif name in self._wanted:
                self._read_table(name, table, source, file.parent)

    def _tables(self, file: Path) -> dict[str, Any]:
        try:
            return read_toml(file)
        except OSError as error:
            text = f"cannot be read: {error.strerror}; give another file with --config"
        except UnicodeDecodeError:
            text = "is not UTF-8 text; give a TOML file with --config"
        except ValueError as error:
            text = f"is not valid TOML: {error}"
        self._problems.append(Problem(f"file {file}", text))
        return {}

    def _read_table(self, name: str, table: dict[str, Any], source: str, folder: Path) -> None:
        for key, raw in table.items():
            declared = self._settings.get(f"{name}.{key}")
            if declared is None:
                names = [s.name for s in self._settings.values() if s.section == name]
                text = f"unknown setting{did_you_mean(key, names)}"
                self._problems.append(Problem(f"{name}.{key}", text, source))
            elif isinstance(raw, str) and _is_path(declared) and raw not in ("", "none"):
                # A path in a file is relative to the file, not to the working directory.
                self._raw[declared.key] = (_relative_to(folder, raw), source)
            elif isinstance(raw, list) and declared.annotation == tuple[Path, ...]:
                self._raw[declared.key] = ([_relative_to(folder, p) for p in raw], source)
            else:
                self._raw[declared.key] = (raw, source)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        variables = {s.variable: s for s in self._settings.values()}
        elsewhere = tuple(f"GRADMESH_{n.upper()}_" for n in self._known - self._wanted)
        for name, raw in sorted(environment.items()):
            if not name.startswith("GRADMESH_") or name in RESERVED:
                continue
            # Settings first: the variable of transport.lane_port looks like a link.
            if name in variables:
                self._raw[variables[name].key] = (raw, f"environment {name}")
            elif _LINK.fullmatch(name):
                continue
            elif not name.startswith(elsewhere):
                hint = did_you_mean(name, variables) or "; unset it"
                self._problems.append(Problem(name, f"unknown variable{hint}", "environment"))

    def read_flags(self, flags: Mapping[str, object]) -> None:
        for key, raw in flags.items():
            if raw is None:
                continue
            declared = self._settings.get(key)
            if declared is None:
                hint = did_you_mean(key, self._settings)
                self._problems.append(Problem(key, f"unknown setting{hint}"))
            else:
                self._raw[key] = (raw, f"flag {declared.flag}")

    def finish(self) -> Sections:
        values = [section(**self._fields(section)) for section in self._sections]
        sources = {key: source for key, (_, source) in self._raw.items()}
        result = Sections(values, sources)
        # Checks between fields would only repeat the problem of a field that is already wrong.
        if not self._problems:
            for value in values:
                for found in (*value.problems(), *value.problems_with(result)):
                    key = f"{value.section}.{found.key}"
                    self._problems.append(Problem(key, found.text, sources.get(key, "default")))
        if self._problems:
            raise ConfigError(self._problems)
        return result

    def _fields(self, section: type[Section]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for declared in settings(section):
            if declared.key in self._raw:
                raw, source = self._raw[declared.key]
                try:
                    fields[declared.name] = convert(declared.annotation, raw, declared.rule)
                except ValueError as error:
                    self._problems.append(Problem(declared.key, str(error), source))
        return fields


def _relative_to(folder: Path, raw: object) -> object:
    """Return a path relative to a folder; what is not a path is left for the conversion."""
    try:
        return folder / _path(raw)
    except ValueError:
        return raw


def _is_path(declared: Setting) -> bool:
    return declared.annotation in (Path, Path | None)
