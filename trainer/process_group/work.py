"""The handle that a collective returns.

A work always finishes: its collective has the group's deadline, so that a wait without a timeout is
bounded, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, final

from gradmesh.sdk.transport.deadline import check_timeout


class Work(ABC):
    """A collective under way. Its arrays belong to the group until it is done."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the collective has finished.

        Args:
            timeout_s: How long to wait; None waits for the collective's own deadline.

        Raises:
            CollectiveTimeout: `timeout_s` ran out (the collective continues), or the
                collective's own deadline did (the group is unusable then).
            PeerLost: A rank left or died.
            CollectiveMismatch: Ranks called different collectives.
            GroupAborted: The group was aborted meanwhile.
            GroupClosed: The group was closed meanwhile.
        """

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the collective has finished, successfully or not."""

    @abstractmethod
    def exception(self) -> Exception | None:
        """Return the error of the collective, None if it succeeded or still runs."""


@final
class FinishedWork(Work):
    """A collective that finished before its call returned."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Return at once."""
        check_timeout(timeout_s, 0)

    def is_done(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> Exception | None:
        """Return None: a finished work has succeeded."""
        return None


class Runner(Protocol):
    """Run pending works to completion."""

    def wait_for(self, work: "PendingWork", timeout_s: float | None) -> None:
        """Return once the work has finished; raise CollectiveTimeout after `timeout_s`."""

    def ensure_progress(self) -> None:
        """Run pending works even if no caller waits for them."""


@final
class PendingWork(Work):
    """A collective that a runner completes by calling `finish`.

    Args:
        name: The collective in words.
        runner: Runs the collective.
        then: Called on the waiting thread if the collective succeeded.
    """

    __slots__ = ("_ended", "_error", "_runner", "_then", "name")

    def __init__(self, name: str, runner: Runner, then: Callable[[], None] | None = None) -> None:
        self.name = name
        self._then = then
        self._runner = runner
        self._ended = False
        self._error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """Complete the work, with or without an error."""
        self._error = error
        self._ended = True

    def is_finished(self) -> bool:
        """Return whether `finish` was called."""
        return self._ended

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the work has finished; see Work.wait."""
        limit_s = None if timeout_s is None else check_timeout(timeout_s, 0)
        if not self._ended:
            self._runner.wait_for(self, limit_s)
        if self._error is not None:
            # Several works may share one error: each raise starts its own traceback.
            raise self._error.with_traceback(None)
        if self._then is not None:
            self._then()

    def is_done(self) -> bool:
        """Return whether the work has finished."""
        if not self._ended:
            self._runner.ensure_progress()
        return self._ended

    def exception(self) -> Exception | None:
        """Return the error of the work."""
        return self._error
