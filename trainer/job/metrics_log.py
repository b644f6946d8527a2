"""Metrics of a running job: lines of JSON, TensorBoard's event files, throughput.

An event file is a sequence of records: length, checksum of the length, an Event message, its
checksum. Only the fields that curves need are written, by hand: five tags of protobuf.
"""

import json
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, final

from gradmesh.sdk.process.bounded_file import parse_json, read_bounded
from gradmesh.trainer.errors import DataError


@final
class Throughput:
    """Counts steps against the clock, from the end of the first step on.

    The first step is not counted: it compiles kernels and opens connections.

    Args:
        step_samples: Samples of one step, of all ranks together.
        begun: Steps done before.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, step_samples: int, begun: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._step_samples = step_samples
        self._clock = clock
        self._built_at = clock()
        self._first: tuple[int, float] | None = None
        self._last = (begun, self._built_at)

    def count(self, steps: int) -> None:
        """Record that `steps` steps are done."""
        self._last = (steps, self._clock())
        if self._first is None:
            self._first = self._last

    def seconds(self) -> float:
        """Return the time from construction to the newest step."""
        return self._last[1] - self._built_at

    def samples_per_s(self) -> float:
        """Return samples per second of all ranks after the first step; 0 before the second."""
        if self._first is None or self._last[0] == self._first[0]:
            return 0.0
        steps = self._last[0] - self._first[0]
        return steps * self._step_samples / max(self._last[1] - self._first[1], 1e-9)


_POLYNOMIAL: Final = 0x82F63B78


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum of some bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@final
class EventFile:
    """A file of scalars by name and step; a context manager.

    Args:
        folder: TensorBoard's log folder; created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self._file: IO[bytes] = (folder / f"events.out.tfevents.{now:.0f}.gradmesh").open("ab")
        self._write(struct.pack("<Bd", 0x09, now) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step."""
        summary = b"".join(
            _bytes(1, _bytes(1, name.encode()) + struct.pack("<Bf", 0x15, value))
            for name, value in values.items()
        )
        head = struct.pack("<Bd", 0x09, time.time()) + b"\x10" + _varint(step)
        self._write(head + _bytes(5, summary))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))
        self._file.flush()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


METRICS_FILE = "metrics.jsonl"
_MAX_LOG_BYTES = 1 << 30


@final
class MetricsLog:
    """Writes one line for each report, on rank 0.

    Args:
        folder: Where metrics.jsonl goes; created if it is missing. None writes nothing.
        tensorboard: Whether to write event files, too.
        step: The first step of this generation; lines of later steps are dropped, since those steps
            are repeated.
    """

    def __init__(self, folder: Path | None, tensorboard: bool, step: int) -> None:
        self._file: IO[str] | None = None
        self._events: EventFile | None = None
        self.lines: list[dict[str, Any]] = []
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        if step and path.exists():
            self.lines = [line for line in read_metrics_log(folder) if line.get("step", 0) <= step]
        self._file = path.open("w", encoding="utf-8")
        for line in self.lines:
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if tensorboard:
            self._events = EventFile(folder / "tensorboard")

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Write values of a step.

        Args:
            kind: "train", "validation" or "result".
            step: Steps done.
            values: Numbers by name.
        """
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        self.lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._events is not None:
            self._events.add(step, {f"{kind}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        """Close the files; may be called twice."""
        if self._file is not None:
            self._file.close()
        if self._events is not None:
            self._events.close()


def read_metrics_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a job so far; an incomplete last line is skipped.

    Raises:
        DataError: A line is damaged; the message has its number.
    """
    path = folder / METRICS_FILE
    try:
        lines = read_bounded(path, _MAX_LOG_BYTES).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DataError(f"{path}: {error}; move it away") from error
    return [_parsed(path, *entry) for entry in enumerate(lines, 1) if entry[1].endswith(b"\n")]


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
        if not isinstance(found, dict) or type(found.get("step", 0)) is not int:
            raise ValueError("expected an object whose `step` is a whole number")
        return found
    except ValueError as error:
        raise DataError(f"{path}:{number}: {error}; delete the line, or move the file") from error
