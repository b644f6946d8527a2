"""Watches over collectives on a GPU: NCCL itself waits for ever when a rank is gone.

The watch sees that the oldest collective ends in time. When it does not, when NCCL reports an
error, or when another rank says that it left, it aborts the communicator: that ends what hangs on
the device. What the ranks tell each other then goes through the rendezvous store.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupClosed,
    PeerLost,
)
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.message import MessageKind, shutdown_error, shutdown_reason
from gradmesh.trainer.process_group.nccl.binding import async_error
from gradmesh.trainer.process_group.nccl.stream import StreamEvent
from gradmesh.trainer.process_group.store import Store
from gradmesh.trainer.process_group.work import PendingWork

_TICK_S = 0.002
_ASK_S = 0.2
_STORE_S = 0.1
# A rank that has closed its group may have done so after its last part in this collective.
_CLOSED_S = 1.0


@final
class PendingCollective:
    """A collective on the device."""

    __slots__ = ("keep", "mark", "number", "peers", "work")

    def __init__(
        self,
        work: PendingWork,
        mark: StreamEvent,
        number: int,
        keep: Any,
        peers: Sequence[int] | None,
    ) -> None:
        self.work = work
        self.mark = mark
        self.number = number
        self.keep = keep
        self.peers = peers


@final
class NcclWatchdog:
    """Brings pending collectives to their end, in order.

    Args:
        communicator: NCCL's.
        rank: This process's rank.
        size: How many ranks take part.
        timeout_s: Longest time one collective may take.
        store: Where ranks say how far they are and why they leave.
        latch: Holds the group's end.
    """

    def __init__(
        self,
        communicator: Any,
        rank: int,
        size: int,
        timeout_s: float,
        store: Store,
        latch: AbortSignal,
    ) -> None:
        self._communicator = communicator
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._store = store
        self._latch = latch
        self._lock = threading.Lock()  # guards _pending
        self._pending: deque[PendingCollective] = deque()
        self._since = 0.0
        self._was_busy = False
        self._news = threading.Condition(self._lock)
        self._thread = threading.Thread(
            target=self._run, name=f"process-group-nccl-{rank}", daemon=True
        )
        self._thread.start()

    def add(self, pending: PendingCollective) -> None:
        """Watch over one more collective."""
        with self._lock:
            if not self._pending:
                self._since = time.monotonic()
            self._pending.append(pending)
            self._news.notify_all()

    def end_of(self, work: PendingWork, timeout_s: float | None) -> None:
        """Return once a collective has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while not work.has_ended():
                self._settle()
                if work.has_ended():
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise CollectiveTimeout(
                        f"{work.name} still runs after {timeout_s} s; wait longer, or abort"
                        " the group"
                    )
                self._news.wait(_TICK_S / 10)

    def hurry(self) -> None:
        """Look at once how far the device is."""
        with self._lock:
            self._settle()

    def end(self, error: Exception) -> None:
        """Trip the latch, and let the watch do the rest. Does not block."""
        self._latch.trip(error)
        with self._lock:
            self._news.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until the watch has gone, after `end`."""
        self._thread.join(timeout_s)

    def _settle(self) -> None:
        """End what the device has done, in order."""
        while self._pending and self._latch.error is None and self._pending[0].mark.is_reached():
            self._pending.popleft().work.finish()
            self._since = time.monotonic()
            self._news.notify_all()

    def _run(self) -> None:
        asked_at = 0.0
        while self._latch.error is None:
            with self._lock:
                self._settle()
                # Asked under the lock: `end` notifies once, perhaps before this thread waits.
                if self._latch.error is None:
                    self._news.wait(_TICK_S if self._pending else None)
                head = self._pending[0] if self._pending else None
            if head is None or self._latch.error is not None:
                continue
            now = time.monotonic()
            age_s = now - self._since
            if now - asked_at >= _ASK_S and age_s >= _ASK_S:
                asked_at = now
                self._attempt(partial(self._ask, head, age_s))
            if (error := async_error(self._communicator)) is not None:
                self._latch.trip(
                    PeerLost(
                        f"NCCL reports {error}: a rank or the network is gone; rejoin to go on in"
                        " the next generation",
                        rank=-1,
                        address="unknown",
                    )
                )
            elif age_s >= self._timeout_s:
                self._latch.trip(self._diagnose(head))
        self._leave()

    def _ask(self, head: PendingCollective, age_s: float) -> None:
        """Say how far we are, and hear whether somebody has left."""
        said = json.dumps([head.number, head.work.name]).encode()
        self._store.set(f"nccl/at/{self._rank}", said)
        rank, kind, about = json.loads(self._store.get("nccl/left", _STORE_S))
        if rank != self._rank and (kind != MessageKind.CLOSED or age_s >= _CLOSED_S):
            self._latch.trip(shutdown_error(MessageKind(kind), about, rank, f"rank {rank}"))

    def _diagnose(self, head: PendingCollective) -> Exception:
        """Find out for whom a collective waits that did not end in time."""
        silent, other = [], {}
        for rank in head.peers or [r for r in range(self._size) if r != self._rank]:
            try:
                number, name = json.loads(self._store.get(f"nccl/at/{rank}", _STORE_S))
            except TimeoutError:
                silent.append(rank)
                continue
            if number < head.number:
                silent.append(rank)
            elif number == head.number and name != head.work.name:
                other[rank] = name
        if other and not silent:
            said = "; ".join(f"rank {rank}: {name}" for rank, name in other.items())
            return CollectiveMismatch(
                f"rank {self._rank} called {head.work.name} while others called something else"
                f" ({said}); all ranks must call the same collectives in the same order"
            )
        names = ", ".join(f"rank {rank}" for rank in silent) or "the device"
        return CollectiveTimeout(
            f"{head.work.name} timed out waiting for {names}; see whether it still runs, or raise"
            " the group's timeout, then rejoin",
            ranks=silent,
        )

    def _leave(self) -> None:
        error = self._latch.error
        with self._lock:
            self._settle_all(error)
        # Destroying waits for the peers if they still owe something: not when all has failed.
        if isinstance(error, GroupClosed) and not self._was_busy:
            self._communicator.destroy()
        else:
            self._communicator.abort()
        self._attempt(lambda: self._say_why(error))

    def _settle_all(self, error: Exception | None) -> None:
        while self._pending:
            pending = self._pending.popleft()
            # Closed in good order: what the device has done is done.
            done = not isinstance(error, GroupAborted) and pending.mark.is_reached()
            self._was_busy = self._was_busy or not done
            pending.work.finish(None if done else error)
        self._news.notify_all()

    def _say_why(self, error: Exception | None) -> None:
        kind, about = shutdown_reason(error, self._rank)
        if kind is MessageKind.CLOSED:
            try:
                self._store.get("nccl/left", _STORE_S)
            except TimeoutError:
                pass
            else:
                return  # somebody had a better reason
        self._store.set("nccl/left", json.dumps([self._rank, int(kind), about]).encode())

    def _attempt(self, act: Callable[[], None]) -> None:
        """Do without the store where it fails: it may be gone with the generation."""
        try:
            act()
        except Exception:
            return
