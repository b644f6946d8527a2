"""Small files of JSON or TOML, read with a bound on their size and their nesting.

A file that somebody else wrote may be as big as a disk, a pipe that never ends, or nested so deeply
that a recursive reader overflows its stack.
"""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO, Final

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and tables."""

MAX_CONFIG_BYTES: Final = 256 << 10
"""Biggest file of settings."""

# The parser of TOML takes time and memory in the square of the parts of a dotted key.
_MAX_DOTS = 512


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; never waits, as the opening of a pipe does.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is a folder, a device, a pipe or a socket.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is not a regular file")
    return file


def read_bounded(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes.

    Raises:
        OSError: It cannot be read.
        ValueError: It is longer, or not a regular file.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def read_json(path: Path, most: int = MAX_CONFIG_BYTES) -> Any:
    """Return the value in a file of JSON.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too long, nested too deeply, or not JSON.
    """
    return parse_json(read_bounded(path, most))


def parse_json(text: bytes | str) -> Any:
    """Return a value of JSON.

    Raises:
        ValueError: It is nested too deeply, or not JSON.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    check_depth(value)
    return value


def read_toml(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too long, nested too deeply, or not TOML in UTF-8.
    """
    text = read_bounded(path, most).decode("utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(
                f"line {number} has more than {_MAX_DOTS} dots; put a long list on several lines"
            )
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    check_depth(tables)
    return tables


def check_depth(value: Any) -> None:
    """Check the nesting of lists and dicts, without recursion.

    Raises:
        ValueError: It is deeper than `MAX_DEPTH`.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for held in level
            if isinstance(held, dict | list)
            for inner in (held.values() if isinstance(held, dict) else held)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
