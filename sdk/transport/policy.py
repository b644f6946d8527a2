"""Value objects of a client: how long it waits, how it retries, how much it holds."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import final

from gradmesh.protos import limits
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.transport.deadline import FOREVER_S, check_timeout

DEFAULT_THREADS = 16


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds that a process waits where a call sets no `timeout_s`; `math.inf` waits for ever.

    Args:
        join_s: To reach the coordinator, and for the workers that start together.
        call_s: Of a call.
        transfer_s: Of a checkpoint, a restore, an export or an import.
    """

    join_s: float = 60.0
    call_s: float = 60.0
    transfer_s: float = 3600.0

    def __post_init__(self) -> None:
        """Raise if one is not a number above 0."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                raise InvalidRequest(f"{field.name} must be a number of seconds, not None")
            check_timeout(value, 0, field.name)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off between attempts.

    Args:
        first_s: Pause after the first failure.
        factor: Growth from pause to pause.
        max_s: Longest pause.
        jitter: Share of a pause that is random, so that many clients do not return at once.
    """

    first_s: float = 0.05
    factor: float = 2.0
    max_s: float = 1.0
    jitter: float = 0.3

    def __post_init__(self) -> None:
        """Raise if the pauses make no sense."""
        for name in ("first_s", "max_s"):
            pause_s = check_timeout(getattr(self, name), 0, name)
            if pause_s >= FOREVER_S:
                raise InvalidRequest(
                    f"{name} must be finite, not {pause_s:g}: the call is repeated after the pause"
                )
        if not self.factor >= 1:
            raise InvalidRequest(f"factor must be 1 or more, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise InvalidRequest(f"jitter must be from 0 to 1, not {self.jitter!r}")

    def pauses(self) -> Iterator[float]:
        """Yield one pause after another, without end."""
        pause = self.first_s
        while True:
            yield pause * (1 - self.jitter * random.random())
            pause = min(self.max_s, pause * self.factor)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a process sends and serves at once.

    Args:
        max_frame_bytes: Largest message; a bigger lookup or push is cut into several.
        threads: Calls of others that run at once; more wait in a queue.
    """

    max_frame_bytes: int = limits.MAX_FRAME_BYTES
    threads: int = DEFAULT_THREADS

    def __post_init__(self) -> None:
        """Raise if one is out of range."""
        if not isinstance(self.threads, int) or self.threads < 1:
            raise InvalidRequest(f"threads must be a whole number above 0, not {self.threads!r}")
        least, most = limits.FRAME_BYTES_RANGE
        if not isinstance(self.max_frame_bytes, int) or not least <= self.max_frame_bytes <= most:
            raise InvalidRequest(
                f"max_frame_bytes must be from {least} to {most}, not {self.max_frame_bytes!r}"
            )
