"""Meetings of workers: each brings a value, and all leave with the values of all.

The worker with the smallest name keeps the table of those who have come. Nobody's thread waits
there: each arrival is a call that is answered later.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.sdk.future import Future

Meeting: TypeAlias = tuple[tuple[str, ...], int]
"""Who meets, and how often they have met before."""


@dataclass(slots=True, eq=False)
class _Arrivals:
    values: dict[str, Any] = field(default_factory=dict)
    complete: Future[dict[str, Any]] = field(default_factory=Future)
    timer: threading.Timer | None = None


@final
class Gathers:
    """The meetings that one worker keeps the table of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._counts: dict[tuple[str, ...], int] = {}
        self._open: dict[Meeting, _Arrivals] = {}
        self.made = 0
        self.served = 0

    def next(self, names: tuple[str, ...]) -> int:
        """Return the number of the next meeting of these workers, as this one counts."""
        with self._lock:
            self.made += 1
            count = self._counts[names] = self._counts.get(names, 0) + 1
            return count

    def arrive(
        self, names: Sequence[str], count: int, who: str, value: Any, timeout_s: float
    ) -> Future[dict[str, Any]]:
        """Enter a value; return the future of all of them.

        Raises:
            InvalidRequest: The worker does not belong to the meeting.
        """
        meeting = (tuple(names), count)
        if who not in meeting[0]:
            raise InvalidRequest(f"{who!r} is not among those who meet: {', '.join(names)}")
        with self._lock:
            self.served += 1
            arrivals = self._open.get(meeting)
            if arrivals is None:
                arrivals = self._open[meeting] = _Arrivals()
                arrivals.timer = threading.Timer(timeout_s, self._late, (meeting, timeout_s))
                arrivals.timer.daemon = True
                arrivals.timer.start()
            arrivals.values[who] = value
            if len(arrivals.values) < len(meeting[0]):
                return arrivals.complete
            del self._open[meeting]
        assert arrivals.timer is not None
        arrivals.timer.cancel()
        arrivals.complete.set_result(dict(arrivals.values))
        return arrivals.complete

    def waiting(self) -> int:
        """Return how many have come to meetings that are not complete."""
        with self._lock:
            return sum(len(arrivals.values) for arrivals in self._open.values())

    def _late(self, meeting: Meeting, timeout_s: float) -> None:
        with self._lock:
            arrivals = self._open.pop(meeting, None)
        if arrivals is None:
            return
        missing = sorted(set(meeting[0]) - set(arrivals.values))
        arrivals.complete.set_exception(
            DeadlineExceeded(
                f"{', '.join(missing)} did not come within {timeout_s:.2f} s; those who meet are "
                f"{', '.join(meeting[0])}",
                missing=",".join(missing),
            )
        )

    def close(self) -> None:
        """End the meetings that are not complete."""
        with self._lock:
            left = list(self._open)
        for meeting in left:
            arrivals = self._open.get(meeting)
            if arrivals is not None and arrivals.timer is not None:
                arrivals.timer.cancel()
            self._late(meeting, 0.0)
