"""Faults that tests inject: a process that kills itself at a named point of its work.

Off unless `process.faults` is set, which no deployment does. A fault fires once, also over the
restarts of its process: it leaves a mark in a folder.
"""

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self, final

_log = logging.getLogger(__name__)


@final
class Fault(NamedTuple):
    """Where a process dies.

    Attributes:
        worker: Name of the process.
        point: Name of the point.
        step: The step at which, or after which, it is reached.
    """

    worker: str
    point: str
    step: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return a fault from `worker:point:step`.

        Raises:
            ValueError: The text is none.
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(parts) or not parts[2].isdigit():
            raise ValueError(f"{text!r} is no fault; write worker:point:step")
        return cls(parts[0], parts[1], int(parts[2]))


_planned: list[tuple[Fault, Path]] = []


def plan(worker: str, faults: Sequence[str], folder: Path | None) -> None:
    """Arm the faults of this process that have not fired yet."""
    _planned.clear()
    for fault in map(Fault.parse, faults):
        if fault.worker == worker and folder is not None:
            mark = folder / "-".join(map(str, fault))
            if not mark.exists():
                _planned.append((fault, mark))


def point(name: str, step: int = 0) -> None:
    """Die here if a fault says so."""
    if not _planned:
        return
    for fault, mark in _planned:
        if fault.point == name and step >= fault.step:
            mark.touch()
            _log.warning("dying of a planned fault", extra={"point": name, "step": step})
            os.kill(os.getpid(), signal.SIGKILL)
