"""The handle that a collective returns.

A work always ends: the collective behind it carries the group's deadline, so waiting for
it without a limit of one's own is still bounded.
"""

import threading
from abc import ABC, abstractmethod
from typing import final

from gradmesh.trainer.errors import CollectiveTimeout


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
            PeerLost: A rank went away.
            CollectiveMismatch: Ranks called different things.
            GroupAborted: The group was aborted meanwhile.
            GroupClosed: The group was closed meanwhile.
        """

    @abstractmethod
    def is_done(self) -> bool:
        """Tell whether the collective has ended, well or badly."""

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


@final
class PendingWork(Work):
    """A collective that another thread ends by calling `finish`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ended = threading.Event()
        self._error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """End the work, well or with an error, and wake those who wait."""
        self._error = error
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the work has ended; see Work.wait."""
        if not self._ended.wait(timeout_s):
            raise CollectiveTimeout(
                f"{self.name} still runs after {timeout_s} s; wait longer, or abort the group"
            )
        if self._error is not None:
            # Several works may share one error: each raise starts a traceback of its own.
            raise self._error.with_traceback(None)

    def is_done(self) -> bool:
        """Tell whether the work has ended."""
        return self._ended.is_set()

    def exception(self) -> Exception | None:
        """Return the error the work ended with."""
        return self._error
