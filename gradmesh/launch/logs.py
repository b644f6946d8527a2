"""Log lines of processes: read from files, followed from containers, rendered for terminals."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

from gradmesh.protos.printable import printable_lines
from gradmesh.sdk.process.bounded_file import parse_json
from gradmesh.sdk.process.log import pretty_line

_POLL_S = 0.1


@final
class LogFiles:
    """The files `<name>.log` of a folder, read line by line.

    Args:
        folder: The folder of log files.
        names: Processes to read; all by default, including those started later.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        self._folder = folder
        self._names = names
        self._read: dict[str, int] = {}  # bytes already returned of each file

    def newest(self, tail: int | None = None) -> list[tuple[str, str]]:
        """Return the new complete lines, sorted by their timestamps.

        Args:
            tail: At most this many of each file, the last ones.
        """
        found: list[tuple[str, str, str]] = []
        for file in sorted(self._folder.glob("*.log")):
            if self._names and file.stem not in self._names:
                continue
            stamp = ""
            lines = self._lines(file)
            for line in lines[max(0, len(lines) - tail) :] if tail is not None else lines:
                # A line without a timestamp, as of a traceback, follows the previous line.
                stamp = _stamp(line) or stamp
                found.append((stamp, file.stem, line))
        return [(name, line) for _, name, line in sorted(found, key=lambda entry: entry[0])]

    def follow(self, is_over: Callable[[], bool], tail: int | None) -> Iterator[tuple[str, str]]:
        """Yield lines as they are written, until the end, when all are returned."""
        yield from self.newest(tail)
        while True:
            # Checked before the last read, so that lines written before the end are read.
            over = is_over()
            yield from self.newest()
            if over:
                return
            time.sleep(_POLL_S)

    def _lines(self, file: Path) -> list[str]:
        begun = self._read.get(file.stem, 0)
        with file.open("rb") as log:
            log.seek(begun)
            # The next read returns the rest of an incomplete line.
            whole = log.read().rpartition(b"\n")[:2]
        raw = b"".join(whole)
        self._read[file.stem] = begun + len(raw)
        # Only "\n" ends a line: a process may write text of others with more exotic separators.
        return raw.decode(errors="replace").split("\n")[:-1]


class LogSource(NamedTuple):
    """The log of one container or pod.

    Attributes:
        id: Unique; a restarted container or pod is another source.
        name: Name of the process.
        lines: Returns the lines from the first, or the last `tail` ones, until the log ends.
    """

    id: str
    name: str
    lines: Callable[[int | None], Iterator[str]]


def follow_sources(
    find: Callable[[], tuple[Sequence[LogSource], bool]], tail: int | None, poll_s: float
) -> Iterator[tuple[str, str]]:
    """Yield process and line of sources that appear and end, each read in a thread of its own.

    Args:
        find: Returns the current sources, and whether the cluster still exists.
        tail: Begin with this many lines of the initial sources; all if None.
        poll_s: Interval of the search for new sources.
    """
    lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    readers: dict[str, threading.Thread] = {}

    def read(source: LogSource, tail: int | None) -> None:
        for line in source.lines(tail):
            lines.put((source.name, line))

    while True:
        # Listed before the queue is emptied, so that no line is missed at the end.
        sources, exists = find()
        for source in sources:
            if source.id not in readers:
                readers[source.id] = threading.Thread(
                    target=read, args=(source, tail), name=f"{source.name}-logs", daemon=True
                )
                readers[source.id].start()
        tail = None
        over = not exists and not any(reader.is_alive() for reader in readers.values())
        due = time.monotonic() + (0.0 if over else poll_s)
        while True:
            try:
                yield lines.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                break
            if not over and time.monotonic() > due:
                break
        if over:
            return


def complete_lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield the lines of a stream of chunks of any size."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def readable(line: str, *, colour: bool = False) -> str:
    """Render a JSON log line for a terminal; return any other line without control characters."""
    if line.startswith("{"):
        try:
            fields = parse_json(line)
        except ValueError:
            return printable_lines(line)
        if isinstance(fields, dict) and "message" in fields:
            # The effective configuration would fill the screen; the log file has it.
            short = {key: value for key, value in fields.items() if not isinstance(value, dict)}
            return pretty_line(short, colour=colour, role=False)
    return printable_lines(line)


def _stamp(line: str) -> str:
    if not line.startswith("{"):
        return ""
    try:
        fields = parse_json(line)
    except ValueError:
        return ""
    return str(fields.get("ts", "")) if isinstance(fields, dict) else ""
