"""Barrier and all-gather over rpc.

The worker with the smallest name coordinates: it collects one value of each participant and replies
to all of them with all values. No thread waits there, because each arrival is a call whose reply is
deferred. One thread ends those that do not complete in time.
"""

import heapq
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

from gradmesh.engine.autograd import Tensor
from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.protos.limits import check_count, check_text
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.builtin import GATHER
from gradmesh.sdk.rpc.current import current_agent
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.agent import Agent

# The coordinating worker reports who is missing, which says more than the caller's own deadline.
_MARGIN_S = 5.0

# Longest wait of a collective, whatever its participants ask for.
_MOST_S = 24 * 3600.0

# How long the thread that ends late collectives waits for another one before it ends.
_IDLE_S = 5.0

# Counted for each value, beside the bytes of its arrays and texts.
_VALUE_BYTES = 64

CollectiveKey: TypeAlias = tuple[tuple[str, ...], int]
"""The participants, and the number of the collective among them."""


@dataclass(slots=True, eq=False)
class _Arrivals:
    opener: str
    timeout_s: float
    deadline: Deadline
    values: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    complete: Future[dict[str, Any]] = field(default_factory=Future)


@final
class CollectiveRegistry:
    """The collectives that one worker coordinates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._counts: dict[tuple[str, ...], int] = {}
        self._open: dict[CollectiveKey, _Arrivals] = {}
        self._opened = Tally(limits.GATHERS)
        self._bytes = Tally(limits.GATHER_BYTES)
        # When the open ones end, the next first; some have completed since.
        self._ends: list[tuple[float, CollectiveKey]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
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
            InvalidRequest: The worker does not participate, or the timeout is not above 0.
            LimitExceeded: Too many collectives wait, or too many bytes in them.
        """
        key = _key_of(names, count)
        if who not in key[0]:
            raise _not_among(who, names)
        if not timeout_s > 0:
            raise InvalidRequest(f"a collective cannot wait for {timeout_s} s", timeout_s=timeout_s)
        size = _size_of(value)
        with self._lock:
            arrivals = self._open.get(key)
            before = 0 if arrivals is None else arrivals.sizes.get(who, 0)
            self._bytes.check("", size - before)
            if arrivals is None:
                arrivals = self._begin(key, who, min(timeout_s, _MOST_S))
            self.served += 1
            self._bytes.add("", size - before)
            arrivals.values[who], arrivals.sizes[who] = value, size
            if len(arrivals.values) < len(key[0]):
                return arrivals.complete
            self._remove(key)
        arrivals.complete.set_result(dict(arrivals.values))
        return arrivals.complete

    def _begin(self, key: CollectiveKey, who: str, timeout_s: float) -> _Arrivals:
        """Add a collective; the lock is held.

        Raises:
            LimitExceeded: Too many wait.
        """
        self._opened.check(who)
        self._opened.add(who)
        made = self._open[key] = _Arrivals(who, timeout_s, Deadline.after(timeout_s))
        heapq.heappush(self._ends, (made.deadline.at, key))
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._end_late, name="collectives", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return made

    def _remove(self, key: CollectiveKey) -> _Arrivals | None:
        """Remove a collective, and what is counted for it; the lock is held."""
        arrivals = self._open.pop(key, None)
        if arrivals is not None:
            self._opened.remove(arrivals.opener)
            self._bytes.remove("", sum(arrivals.sizes.values()))
            # Most complete in time: without this, their ends would pile up until then.
            if len(self._ends) > 2 * len(self._open) + 16:
                self._ends = [(held.deadline.at, key) for key, held in self._open.items()]
                heapq.heapify(self._ends)
        return arrivals

    def _end_late(self) -> None:
        """Fail the collectives whose time is over; the thread ends when none is open for long."""
        while True:
            with self._lock:
                if not self._ends and not self._closed:
                    self._changed.wait(_IDLE_S)
                if not self._ends:
                    self._thread = None
                    return
                at, key = self._ends[0]
                arrivals = self._open.get(key)
                if arrivals is not None and arrivals.deadline.at == at:
                    left_s = arrivals.deadline.remaining_s()
                    if left_s > 0:
                        self._changed.wait(left_s)
                        continue
                    self._remove(key)
                else:
                    arrivals = None
                if self._ends and self._ends[0] == (at, key):
                    heapq.heappop(self._ends)
            if arrivals is not None:
                _fail(key, arrivals)

    def waiting(self) -> int:
        """Return how many participants have arrived at incomplete collectives."""
        with self._lock:
            return sum(len(arrivals.values) for arrivals in self._open.values())

    def close(self) -> None:
        """Fail the incomplete collectives."""
        with self._lock:
            left = [(key, self._remove(key)) for key in list(self._open)]
            self._ends.clear()
            self._closed = True
            self._changed.notify_all()
        for key, arrivals in left:
            if arrivals is not None:
                _fail(key, arrivals)


def _key_of(names: Sequence[str], count: int) -> CollectiveKey:
    check_count("participants of a collective", len(names), limits.MEMBERS.total)
    for name in names:
        check_text("name of a participant", name, limits.MAX_NAME_BYTES)
    return tuple(names), count


def _size_of(value: Any) -> int:
    """Return about how many bytes of memory a value takes."""
    if isinstance(value, str | bytes):
        return _VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return sum(map(_size_of, value.keys())) + sum(map(_size_of, value.values()), _VALUE_BYTES)
    if isinstance(value, list | tuple | set):
        return sum(map(_size_of, value), _VALUE_BYTES)
    held = value.data if isinstance(value, Tensor) else value
    return _VALUE_BYTES + int(getattr(held, "nbytes", 0))


def _fail(key: CollectiveKey, arrivals: _Arrivals) -> None:
    missing = sorted(set(key[0]) - set(arrivals.values))
    arrivals.complete.set_exception(
        DeadlineExceeded(
            f"{', '.join(missing)} did not arrive within {arrivals.timeout_s:.2f} s; the "
            f"participants are {', '.join(key[0])}",
            missing=",".join(missing),
        )
    )


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
