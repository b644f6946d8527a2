"""Who a process is to the coordinator: its session, and the coordinator's clock."""

import secrets
import time
from collections.abc import Callable
from typing import final

from gradmesh.protos.ticket import SESSION_BYTES


@final
class CoordinatorClock:
    """The coordinator's clock as this process knows it, so that its own wall clock does not matter.

    Args:
        clock: Monotonic seconds, replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead_ms: float | None = None

    def set(self, time_ms: int) -> None:
        """Take over the time in a response of the coordinator; 0 stands for none."""
        if time_ms:
            self._ahead_ms = time_ms - self._clock() * 1000

    def now_ms(self) -> float | None:
        """Return the coordinator's time in milliseconds; None before its first response."""
        ahead_ms = self._ahead_ms
        return None if ahead_ms is None else self._clock() * 1000 + ahead_ms


@final
class MemberIdentity:
    """A process that becomes a member, from its start to its end.

    Args:
        name: Name of the process.
        incarnation: Its incarnation; the time by default.

    Attributes:
        session: The session key: proves to the coordinator that calls come from this member, and
            signs the tickets of its callers. It is sent to the coordinator only.
        clock: The coordinator's clock.
    """

    def __init__(self, name: str, incarnation: int | None = None) -> None:
        self.name = name
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.session = secrets.token_bytes(SESSION_BYTES)
        self.clock = CoordinatorClock()
