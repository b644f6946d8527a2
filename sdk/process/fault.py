"""Fault injection for tests: a process kills itself at a named point of its work.

Off unless `process.faults` is set, which no deployment does. A fault fires once, even if its
process restarts: it leaves a mark file in a folder.
"""

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self, final

_log = logging.getLogger(__name__)

_SIGNALS = {"kill": signal.SIGKILL, "leave": signal.SIGTERM}


@final
class PlannedFault(NamedTuple):
    """A point at which a process kills itself or begins to drain.

    Attributes:
        worker: Name of the process.
        point: Name of the point.
        step: The fault fires the first time the point is reached at this step or a later one.
        how: `kill` for SIGKILL, `leave` for SIGTERM.
    """

    worker: str
    point: str
    step: int
    how: str = "kill"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return a fault from `worker:point:step` or `worker:point:step:leave`.

        Raises:
            ValueError: The text is not a fault.
        """
        worker, point_, step, how = (*text.split(":"), *[""] * 4)[:4]
        is_whole = text.count(":") in (2, 3) and worker and point_ and step.isdigit()
        if not is_whole or (how or "kill") not in _SIGNALS or text.endswith(":"):
            raise ValueError(f"{text!r} is not a fault; write worker:point:step or …:leave")
        return cls(worker, point_, int(step), how or "kill")

    @property
    def mark(self) -> str:
        """Name of the file that records that it has fired."""
        return "-".join(map(str, self))


_planned: list[tuple[PlannedFault, Path]] = []


def plan(worker: str, faults: Sequence[str], folder: Path | None) -> None:
    """Arm the faults of this process that have not fired yet."""
    _planned.clear()
    for fault in map(PlannedFault.parse, faults):
        if fault.worker == worker and folder is not None:
            mark = folder / fault.mark
            if not mark.exists():
                _planned.append((fault, mark))


def point(name: str, step: int = 0) -> None:
    """Kill the process, or begin to drain it, if a fault is planned here."""
    if not _planned:
        return
    for fault, mark in _planned:
        if fault.point == name and step >= fault.step and not mark.exists():
            mark.touch()
            _log.warning("injected fault", extra={"point": name, "step": step, "how": fault.how})
            os.kill(os.getpid(), _SIGNALS[fault.how])
