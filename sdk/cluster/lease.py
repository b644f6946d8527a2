"""A process's membership, renewed by heartbeats from a thread of its own.

The responses carry the state that members watch: the trainers' current generation, the epoch of the
shard map, requests for a checkpoint. The coordinator delays a response until that state changes, so
that a change arrives at once. If the coordinator has lost its members, the process registers again.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol, final

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import MeshError, NameTaken, NotMember
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.identity import CoordinatorClock

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 1.0
# After a change, and between two answers that do not wait.
_SHORTEST_PAUSE_S = 0.05
_LONGEST_CALL_S = 2.0


class OpenContexts(Protocol):
    """Distributed-autograd contexts on this process, or other state that other workers own here."""

    def openers(self) -> dict[tuple[str, int], int]:
        """Return how many contexts are open, by name and incarnation of their opener."""

    def drop_worker(self, name: str, incarnation: int) -> int:
        """End those of a process that is gone; return how many."""


@final
class Lease:
    """Membership of one process, from `start` to `close`.

    Args:
        coordinator: Where to register.
        member: This process.
        on_lost: Called once if another process takes its name.
        clock: Set to the coordinator's time with every response.

    Attributes:
        generation: The trainers' current generation.
        shard_epoch: Epoch of the newest shard map.
        checkpoint_request: Number of the newest request for a checkpoint.
        reshard: Number of the reshard under way; 0 for none.
        lost: Whether another process has taken the name.
        authenticates: Whether the coordinator authenticates its callers.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        member: membership_pb2.Member,
        *,
        on_lost: Callable[[], object] = lambda: None,
        clock: CoordinatorClock | None = None,
    ) -> None:
        self.member = member
        self._clock = clock or CoordinatorClock()
        self.generation = 0
        self.shard_epoch = 0
        self.checkpoint_request = 0
        self.reshard = 0
        self.lost = False
        self.authenticates = False
        self._coordinator = coordinator
        self._on_lost = on_lost
        self._contexts: list[OpenContexts] = []
        self._closed = threading.Event()
        self._registrations = 0
        # Openers that earlier heartbeats have named, of those that do not fit into one.
        self._reported = 0
        # Whether the coordinator answered last time; `close` does not wait for one that is
        # unreachable.
        self._answered = True
        self._thread = threading.Thread(target=self._renew_forever, name="lease", daemon=True)

    def start(self, *, replace: bool = False, deadline: Deadline) -> None:
        """Register, and keep the lease alive.

        Args:
            replace: Whether the former holder of the name is known to be gone.
            deadline: For the registration.

        Raises:
            NameTaken: A live process holds the name.
            Unreachable: The coordinator did not answer in time.
        """
        while True:
            try:
                self._register(replace, deadline)
            except NameTaken as error:
                # A former process of this name that did not leave holds the name until its lease
                # expires.
                wait_s = float(error.metadata.get("expires_in_s", 0)) + 0.1
                if wait_s >= deadline.remaining_s():
                    raise
                _log.warning("name taken, waiting", extra={"seconds": round(wait_s, 1)})
                self._closed.wait(wait_s)
            else:
                break
        self._thread.start()

    def _register(self, replace: bool, deadline: Deadline) -> None:
        response = self._coordinator.register(self.member, replace, deadline)
        self._registrations += 1
        self._clock.set(response.time_ms)
        self.authenticates = response.authenticates
        self.lease_s = response.lease_s
        self.generation = response.generation

    def _renew_forever(self) -> None:
        pause_s = min(self.lease_s / 3, _LONGEST_PAUSE_S)
        while not self._closed.wait(pause_s):
            every_s = min(self.lease_s / 3, _LONGEST_PAUSE_S)
            begun = time.monotonic()
            pause_s = every_s
            try:
                call_s = min(max(self.lease_s / 2, 0.5), _LONGEST_CALL_S)
                # The coordinator waits for changes, not this thread, so that they arrive at once.
                changed = self.renew(Deadline.after(call_s), every_s)
                took_s = time.monotonic() - begun
                pause_s = _SHORTEST_PAUSE_S if changed else max(0.0, every_s - took_s)
                self._answered = True
            except NameTaken:
                self.lost = True
                _log.error("another process took this name", extra={"worker": self.member.name})
                self._on_lost()
                return
            except MeshError as error:
                self._answered = False
                if not self._closed.is_set():
                    _log.warning("lease not renewed", extra={"error": error.message})

    def renew(self, deadline: Deadline, wait_s: float = 0.0) -> bool:
        """Send a heartbeat and store the returned state; register again if the lease has expired.

        Args:
            deadline: For the answer.
            wait_s: How long it may wait for a change.

        Returns:
            Whether anything changed.

        Raises:
            NameTaken: Another process took the name.
        """
        openers = Counter[tuple[str, int]]()
        for held in self._contexts:
            openers.update(held.openers())  # entries of 0 contexts stay in it
        try:
            state = self._coordinator.renew_lease(
                self.member.name,
                self.member.incarnation,
                deadline,
                self._some(openers),
                wait_s,
                self._known(),
            )
        except NotMember:
            if self._closed.is_set():
                raise  # this process left
            _log.warning("no longer a member, registering again")
            self._register(False, deadline)
            return True
        else:
            before = self._known()
            self._clock.set(state.time_ms)
            self.generation = state.generation
            self.shard_epoch = state.shard_epoch
            self.checkpoint_request = state.checkpoint_request
            self.reshard = state.reshard
            for gone in state.gone:
                self._drop(gone.name, gone.incarnation)
            return self._known() != before or bool(state.gone)

    def _some(self, openers: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], int]:
        """Return as many openers as a heartbeat may name; others than in the last one."""
        most = limits.MAX_OPENERS
        if len(openers) <= most:
            return openers
        names = sorted(openers)
        begin = self._reported % len(names)
        self._reported = begin + most
        return {name: openers[name] for name in (names[begin:] + names[:begin])[:most]}

    def _known(self) -> membership_pb2.RenewLeaseResponse:
        return membership_pb2.RenewLeaseResponse(
            generation=self.generation,
            shard_epoch=self.shard_epoch,
            checkpoint_request=self.checkpoint_request,
            reshard=self.reshard,
        )

    def watch(self, contexts: OpenContexts) -> None:
        """Report open contexts with every heartbeat, and release those of lost workers."""
        self._contexts.append(contexts)

    def _drop(self, name: str, incarnation: int) -> None:
        dropped = sum(held.drop_worker(name, incarnation) for held in self._contexts)
        if dropped:
            _log.warning(
                "what a lost worker held was dropped", extra={"worker": name, "count": dropped}
            )

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the mesh; may be called twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._thread.ident is None:
            return  # never started
        known = self._registrations
        # Leaving also ends the call that is waiting for changes.
        self._leave(timeout_s)
        self._thread.join(timeout_s)
        if self._registrations != known:
            self._leave(timeout_s)  # the thread was about to register again

    def _leave(self, timeout_s: float) -> None:
        if self.lost:
            return
        deadline = Deadline.after(timeout_s if self._answered else min(timeout_s, 0.2))
        try:
            self._coordinator.leave(self.member.name, self.member.incarnation, deadline)
        except MeshError as error:
            _log.warning(
                "the coordinator did not confirm the leave", extra={"error": error.message}
            )
