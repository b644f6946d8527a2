"""A process's membership, kept alive by a thread of its own.

The thread also brings the news that every member must hear: the trainers' current generation and
the epoch of the shard map. The coordinator answers when there is some, so that it is heard at once.
A coordinator that restarted is told again who we are.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol, final

from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import GradmeshError, NameTaken, NotMember
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 1.0
# When there is much news, and between two answers that do not wait.
_SHORTEST_PAUSE_S = 0.05
_LONGEST_CALL_S = 2.0


class OpenContexts(Protocol):
    """Contexts of distributed autograd on this process, or whatever else belongs to others."""

    def openers(self) -> dict[tuple[str, int], int]:
        """Return how many contexts are open, by name and incarnation of who opened them."""

    def drop_worker(self, name: str, incarnation: int) -> int:
        """End those of a process that is gone; return how many."""


@final
class Lease:
    """Membership of one process; ended by `close`.

    Args:
        coordinator: Where to register.
        member: Who we are.
        replace: Whether we know that the former holder of our name is gone.
        deadline: For the first registration.
        on_lost: Called once if another process takes our name.

    Raises:
        NameTaken: A live process holds the name.
        Unreachable: The coordinator did not answer in time.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        member: membership_pb2.Member,
        *,
        replace: bool,
        deadline: Deadline,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self.member = member
        self.generation = 0
        self.shard_epoch = 0
        self.checkpoint_request = 0
        self.reshard = 0
        self.lost = False
        self._coordinator = coordinator
        self._on_lost = on_lost
        self._contexts: list[OpenContexts] = []
        self._closed = threading.Event()
        self._registrations = 0
        # Whether the coordinator answered last time; a goodbye to a silent one is not worth a wait.
        self._heard = True
        self._register_first(replace, deadline)
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def _register_first(self, replace: bool, deadline: Deadline) -> None:
        while True:
            try:
                self._register(replace, deadline)
            except NameTaken as error:
                # Our own former self, gone without a goodbye, holds the name until its lease ends.
                wait_s = float(error.metadata.get("expires_in_s", 0)) + 0.1
                if wait_s >= deadline.remaining_s():
                    raise
                _log.warning("name taken, waiting", extra={"seconds": round(wait_s, 1)})
                self._closed.wait(wait_s)
            else:
                return

    def _register(self, replace: bool, deadline: Deadline) -> None:
        response = self._coordinator.register(self.member, replace, deadline)
        self._registrations += 1
        self.lease_s = response.lease_s
        self.generation = response.generation

    def _keep(self) -> None:
        pause_s = min(self.lease_s / 3, _LONGEST_PAUSE_S)
        while not self._closed.wait(pause_s):
            every_s = min(self.lease_s / 3, _LONGEST_PAUSE_S)
            begun = time.monotonic()
            pause_s = every_s
            try:
                call_s = min(max(self.lease_s / 2, 0.5), _LONGEST_CALL_S)
                # The answer waits for news in our stead, so that we hear them at once.
                has_news = self.renew(Deadline.after(call_s), every_s)
                took_s = time.monotonic() - begun
                pause_s = _SHORTEST_PAUSE_S if has_news else max(0.0, every_s - took_s)
                self._heard = True
            except NameTaken:
                self.lost = True
                _log.error("another process took our name", extra={"worker": self.member.name})
                self._on_lost()
                return
            except GradmeshError as error:
                self._heard = False
                if not self._closed.is_set():
                    _log.warning("lease not renewed", extra={"error": error.message})

    def renew(self, deadline: Deadline, wait_s: float = 0.0) -> bool:
        """Give a sign of life and hear the news; register again if we were forgotten.

        Args:
            deadline: For the answer.
            wait_s: How long it may wait for news.

        Returns:
            Whether there were any.

        Raises:
            NameTaken: Another process took our name.
        """
        openers = Counter[tuple[str, int]]()
        for held in self._contexts:
            openers.update(held.openers())  # those without contexts stay in it, with 0
        try:
            news = self._coordinator.renew_lease(
                self.member.name, self.member.incarnation, deadline, openers, wait_s, self._known()
            )
        except NotMember:
            if self._closed.is_set():
                raise  # we left by ourselves
            _log.warning("no longer a member, registering again")
            self._register(False, deadline)
            return True
        else:
            before = self._known()
            self.generation = news.generation
            self.shard_epoch = news.shard_epoch
            self.checkpoint_request = news.checkpoint_request
            self.reshard = news.reshard
            for gone in news.gone:
                self._drop(gone.name, gone.incarnation)
            return self._known() != before or bool(news.gone)

    def _known(self) -> membership_pb2.RenewLeaseResponse:
        return membership_pb2.RenewLeaseResponse(
            generation=self.generation,
            shard_epoch=self.shard_epoch,
            checkpoint_request=self.checkpoint_request,
            reshard=self.reshard,
        )

    def watch(self, contexts: OpenContexts) -> None:
        """Report open contexts with every sign of life, and end those of workers that are gone."""
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
        known = self._registrations
        # The goodbye also ends the call that waits for news.
        self._say_goodbye(timeout_s)
        self._thread.join(timeout_s)
        if self._registrations != known:
            self._say_goodbye(timeout_s)  # the thread was just about to register again

    def _say_goodbye(self, timeout_s: float) -> None:
        if self.lost:
            return
        deadline = Deadline.after(timeout_s if self._heard else min(timeout_s, 0.2))
        try:
            self._coordinator.leave(self.member.name, self.member.incarnation, deadline)
        except GradmeshError as error:
            _log.warning("left without a goodbye", extra={"error": error.message})
