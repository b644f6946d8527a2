"""Barrier and all-gather over rpc.

The worker with the smallest name coordinates: it collects one value of each participant and replies
to all of them with all values. No thread waits there, because each arrival is a call whose reply is
deferred.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.builtin import GATHER
from gradmesh.sdk.rpc.current import current_agent

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.agent import Agent

# The coordinating worker reports who is missing, which says more than the caller's own deadline.
_MARGIN_S = 5.0

CollectiveKey: TypeAlias = tuple[tuple[str, ...], int]
"""The participants, and the number of the collective among them."""


@dataclass(slots=True, eq=False)
class _Arrivals:
    values: dict[str, Any] = field(default_factory=dict)
    complete: Future[dict[str, Any]] = field(default_factory=Future)
    timer: threading.Timer | None = None


@final
class CollectiveRegistry:
    """The collectives that one worker coordinates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._counts: dict[tuple[str, ...], int] = {}
        self._open: dict[CollectiveKey, _Arrivals] = {}
        self.made = 0
        self.served = 0

    def next(self, names: tuple[str, ...]) -> int:
        """Return the number of the next collective of these workers, by this worker's count."""
        with self._lock:
            self.made += 1
            count = self._counts[names] = self._counts.get(names, 0) + 1
            return count

    def arrive(
        self, names: Sequence[str], count: int, who: str, value: Any, timeout_s: float
    ) -> Future[dict[str, Any]]:
        """Add a participant's value; return the future of all values.

        Raises:
            InvalidRequest: The worker does not participate.
        """
        key = (tuple(names), count)
        if who not in key[0]:
            raise _not_among(who, names)
        with self._lock:
            self.served += 1
            arrivals = self._open.get(key)
            if arrivals is None:
                arrivals = self._open[key] = _Arrivals()
                arrivals.timer = threading.Timer(timeout_s, self._expire, (key, timeout_s))
                arrivals.timer.daemon = True
                arrivals.timer.start()
            arrivals.values[who] = value
            if len(arrivals.values) < len(key[0]):
                return arrivals.complete
            del self._open[key]
        assert arrivals.timer is not None
        arrivals.timer.cancel()
        arrivals.complete.set_result(dict(arrivals.values))
        return arrivals.complete

    def waiting(self) -> int:
        """Return how many participants have arrived at incomplete collectives."""
        with self._lock:
            return sum(len(arrivals.values) for arrivals in self._open.values())

    def _expire(self, key: CollectiveKey, timeout_s: float) -> None:
        with self._lock:
            arrivals = self._open.pop(key, None)
        if arrivals is None:
            return
        missing = sorted(set(key[0]) - set(arrivals.values))
        arrivals.complete.set_exception(
            DeadlineExceeded(
                f"{', '.join(missing)} did not arrive within {timeout_s:.2f} s; the participants "
                f"are {', '.join(key[0])}",
                missing=",".join(missing),
            )
        )

    def close(self) -> None:
        """Fail the incomplete collectives."""
        with self._lock:
            left = list(self._open)
        for key in left:
            arrivals = self._open.get(key)
            if arrivals is not None and arrivals.timer is not None:
                arrivals.timer.cancel()
            self._expire(key, 0.0)


def all_gather(
    value: Any, names: Iterable[str] | None = None, timeout_s: float | None = None
) -> dict[str, Any]:
    """Exchange a value with other workers; return the values of all by name.

    Args:
        value: Anything that can be sent.
        names: The participants, this worker among them and the same on each; by default the world
            that this worker began with, or else all workers that are members now.
        timeout_s: How long the first waits for the last; the default of rpc if left out.

    Raises:
        DeadlineExceeded: A participant did not arrive; the message names it.
    """
    return gather(current_agent(), value, names, timeout_s)


def barrier(names: Iterable[str] | None = None, timeout_s: float | None = None) -> None:
    """Wait until all participants have reached the same point.

    Args:
        names: The participants; as in `all_gather`.
        timeout_s: As in `all_gather`.

    Raises:
        DeadlineExceeded: A participant did not arrive; the message names it.
    """
    all_gather(None, names, timeout_s)


def gather(
    agent: "Agent", value: Any, names: Iterable[str] | None, timeout_s: float | None
) -> dict[str, Any]:
    """Run an all-gather through a certain agent."""
    limit_s = agent.caller.deadline(timeout_s).remaining_s()
    participants = tuple(sorted(set(names))) if names is not None else _all_workers(agent)
    if agent.name not in participants:
        raise _not_among(agent.name, participants)
    count = agent.collectives.next(participants)
    args = (list(participants), count, agent.name, value, limit_s)
    values: dict[str, Any] = agent.caller.start(
        participants[0], GATHER, args, {}, limit_s + _MARGIN_S
    ).finish()
    return values


def _all_workers(agent: "Agent") -> tuple[str, ...]:
    if agent.world:
        return agent.world
    members = agent.directory.refresh(agent.caller.deadline(None))
    workers = [m.name for m in members.values() if m.role == membership_pb2.ROLE_WORKER]
    return tuple(sorted({*workers, agent.name}))


def _not_among(worker: str, participants: Iterable[str]) -> InvalidRequest:
    return InvalidRequest(
        f"{worker!r} is not among the participants, {', '.join(participants)}", worker=worker
    )
