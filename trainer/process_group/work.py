"""The handle that a collective returns.

A work always ends: the collective behind it carries the group's deadline, so waiting for
it without a limit of one's own is still bounded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, final


class Work(ABC):
    """A collective under way. Its arrays belong to the group until it is done."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the collective has ended.

        Args:
            timeout_s: How long to wait; None waits for the collective's own deadline.

        Raises:
            CollectiveTimeout: `timeout_s` ran out (the collective goes on), or the
                collective's own deadline did (the group is spent).
            PeerLost: A rank left or died.
            CollectiveMismatch: Ranks called different things.
            GroupAborted: The group was aborted meanwhile.
            GroupClosed: The group was closed meanwhile.
        """

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the collective has ended, well or badly."""

    @abstractmethod
    def exception(self) -> Exception | None:
        """Return the error of an ended collective, None if it went well or still runs."""


@final
class FinishedWork(Work):
    """A collective that ended before its call returned."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Return at once."""

    def is_done(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> Exception | None:
        """Return None: a finished work went well."""
        return None


class Runner(Protocol):
    """Whoever brings pending works to their end."""

    def end_of(self, work: "PendingWork", timeout_s: float | None) -> None:
        """Return once the work has ended; raise CollectiveTimeout if `timeout_s` runs out."""

    def hurry(self) -> None:
        """Make sure that pending works go on though nobody waits for them."""


@final
class PendingWork(Work):
    """A collective that a runner ends by calling `finish`.

    Args:
        name: The collective in words.
        runner: Whom to ask for its end.
        then: Called by whoever has waited, when the collective went well.
    """

    __slots__ = ("_ended", "_error", "_runner", "_then", "name")

    def __init__(self, name: str, runner: Runner, then: Callable[[], None] | None = None) -> None:
        self.name = name
        self._then = then
        self._runner = runner
        self._ended = False
        self._error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """End the work, well or with an error."""
        self._error = error
        self._ended = True

    def has_ended(self) -> bool:
        """Return whether `finish` was called."""
        return self._ended

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the work has ended; see Work.wait."""
        if not self._ended:
            self._runner.end_of(self, timeout_s)
        if self._error is not None:
            # Several works may share one error: each raise starts a traceback of its own.
            raise self._error.with_traceback(None)
        if self._then is not None:
            self._then()

    def is_done(self) -> bool:
        """Return whether the work has ended."""
        if not self._ended:
            self._runner.hurry()
        return self._ended

    def exception(self) -> Exception | None:
        """Return the error the work ended with."""
        return self._error
