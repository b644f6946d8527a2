"""Read and follow the log files of a local cluster."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

_POLL_S = 0.1


@final
class LogFiles:
    """The files `<name>.log` of a folder, read line by line.

    Args:
        folder: Where they are.
        names: Those to read; all by default, also such that come later.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        self._folder = folder
        self._names = names
        self._read: dict[str, int] = {}  # bytes of each file that were given out

    def newest(self, tail: int | None = None) -> list[tuple[str, str]]:
        """Return the whole lines that were not given out yet, by the time they carry.

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
                # A line without a time, as of a traceback, stays behind the one before it.
                stamp = _stamp(line) or stamp
                found.append((stamp, file.stem, line))
        return [(name, line) for _, name, line in sorted(found, key=lambda entry: entry[0])]

    def follow(self, is_over: Callable[[], bool], tail: int | None) -> Iterator[tuple[str, str]]:
        """Give lines as they are written, until it is over and all were given."""
        yield from self.newest(tail)
        while True:
            # Asked before the last look, so that what was written before the end is seen.
            over = is_over()
            yield from self.newest()
            if over:
                return
            time.sleep(_POLL_S)

    def _lines(self, file: Path) -> list[str]:
        begun = self._read.get(file.stem, 0)
        with file.open("rb") as log:
            log.seek(begun)
            # The rest of a line that is being written comes with the next look.
            whole = log.read().rpartition(b"\n")[:2]
        raw = b"".join(whole)
        self._read[file.stem] = begun + len(raw)
        return raw.decode(errors="replace").splitlines()


def _stamp(line: str) -> str:
    if not line.startswith("{"):
        return ""
    try:
        return str(json.loads(line).get("ts", ""))
    except ValueError:
        return ""
