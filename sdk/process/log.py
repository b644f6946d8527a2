"""Logs of a process: one JSON object per line for machines, or aligned coloured lines for people.

Both come from the same record, `fields_of`, so a supervisor can show the JSON lines of its
children in the pretty form.
"""

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, TextIO, final

from gradmesh.protos.printable import printable
from gradmesh.sdk.process.setting import Section, setting

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_HEAD = ("ts", "level", "role", "name", "message")
_SECRET = ("token", "password", "secret", "authorization")
_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_LEVELS = {
    "debug": _DIM,
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[1;31m",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Section):
    """How a process writes its log, which goes to standard error."""

    section: ClassVar[str] = "log"
    flag_prefix: ClassVar[str] = "log-"

    format: Literal["auto", "pretty", "json"] = setting(
        "auto", "Form of the log lines; auto is pretty on a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Least important level that is written; debug adds tracebacks."
    )

    def pretty_on(self, stream: TextIO) -> bool:
        """Return whether lines written to the stream take the pretty form."""
        return self.format == "pretty" or (self.format == "auto" and stream.isatty())


def set_up_logging(config: LogConfig, role: str, stream: TextIO | None = None) -> None:
    """Send all logs of this process to one stream; replaces what was set up before.

    Args:
        config: Form and level.
        role: The process that writes, such as `parameter-server-0`.
        stream: The destination; standard error by default.
    """
    stream = sys.stderr if stream is None else stream
    pretty = config.pretty_on(stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrettyFormatter(role, stream.isatty()) if pretty else JsonFormatter(role))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    logging.captureWarnings(True)


@final
class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts, level, role, name, message, then the extra fields."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON line."""
        return json.dumps(fields_of(record, self._role, self), default=str)


@final
class PrettyFormatter(logging.Formatter):
    """Aligned lines for people, coloured on a terminal."""

    def __init__(self, role: str, colour: bool) -> None:
        super().__init__()
        self._role = role
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, with the traceback below it if it has one."""
        fields = fields_of(record, self._role, self)
        # The configuration of several processes would fill the screen; JSON lines have it.
        fields.pop("config", None)
        return pretty_line(fields, colour=self._colour)


def fields_of(record: logging.LogRecord, role: str, formatter: logging.Formatter) -> dict[str, Any]:
    """Return the fields of a record in the order in which they are written.

    Values of extra fields named after a token, password or secret are masked, unless they name a
    file.
    """
    fields: dict[str, Any] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "role": role,
        "name": record.name,
        "message": record.getMessage(),
    }
    for key, value in vars(record).items():
        if key not in _PLAIN:
            # `name` and `role` are taken; an extra field of that name must not be lost.
            fields[f"{key}_" if key in _HEAD else key] = "***" if _is_secret(key) else value
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


def pretty_line(fields: Mapping[str, Any], *, colour: bool, role: bool = True) -> str:
    """Render the fields of a record for people, all but the traceback on one line.

    Text that other processes sent is part of them: control characters are shown as escapes.

    Args:
        fields: As `fields_of` makes them, or as read from a JSON line.
        colour: Whether to add terminal colours.
        role: Whether to show the role; a supervisor has its own prefix.
    """
    plain = {printable(str(key)): printable(str(value)) for key, value in fields.items()}
    ts, level = plain.get("ts", ""), plain.get("level", "info")
    head = [_paint(ts[11:19], _DIM, colour), _paint(f"{level:<7}", _LEVELS.get(level, ""), colour)]
    if role:
        head.append(plain.get("role", ""))
    rest = [f"{k}={v}" for k, v in plain.items() if k not in _HEAD and k != "traceback"]
    line = " ".join([*head, plain.get("message", ""), *(_paint(r, _DIM, colour) for r in rest)])
    return line + _below(str(fields.get("traceback", "")))


def _below(trace: str) -> str:
    """Return a traceback indented, so that no line of it looks like a line of the log."""
    return "".join(f"\n  {printable(line.expandtabs())}" for line in trace.splitlines())


def _paint(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour and code else text


def _is_secret(key: str) -> bool:
    name = key.lower()
    return any(word in name for word in _SECRET) and not name.endswith("_file")
