"""The watchdog of collectives on a GPU: NCCL itself waits for ever if a rank is gone.

The watchdog aborts the communicator if the oldest collective does not finish in time, if NCCL
reports an error, or if another rank has left. The abort ends what hangs on the device. Ranks then
exchange their progress and the reason through the rendezvous store.
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
_PROGRESS_S = 0.2
_STORE_S = 0.1
# A rank may have closed its group after it finished its share of this collective.
_CLOSED_S = 1.0


@final
class PendingCollective:
    """A collective on the device."""

    __slots__ = ("event", "keep", "number", "peers", "work")

    def __init__(
        self,
        work: PendingWork,
        event: StreamEvent,
        number: int,
        keep: Any,
        peers: Sequence[int] | None,
    ) -> None:
        self.work = work
        self.event = event
        self.number = number
        self.keep = keep
        self.peers = peers


@final
class NcclWatchdog:
    """Finish pending collectives in order, or abort them.

    Args:
        communicator: NCCL's communicator.
        rank: This process's rank.
        size: Number of ranks.
        timeout_s: Longest time one collective may take.
        store: Where ranks publish their progress and why they leave.
        abort_signal: Holds the error that ends the group.
    """

    def __init__(
        self,
        communicator: Any,
        rank: int,
        size: int,
        timeout_s: float,
        store: Store,
        abort_signal: AbortSignal,
    ) -> None:
        self._communicator = communicator
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._store = store
        self._abort_signal = abort_signal
        self._lock = threading.Lock()  # guards _pending
        self._pending: deque[PendingCollective] = deque()
        self._since = 0.0
        self._has_unfinished = False
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(
            target=self._run, name=f"process-group-nccl-{rank}", daemon=True
        )
        self._thread.start()

    def add(self, pending: PendingCollective) -> None:
        """Watch one more collective."""
        with self._lock:
            if not self._pending:
                self._since = time.monotonic()
            self._pending.append(pending)
            self._changed.notify_all()

    def wait_for(self, work: PendingWork, timeout_s: float | None) -> None:
        """Return once a collective has finished."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while not work.is_finished():
                self._finish_done()
                if work.is_finished():
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise CollectiveTimeout(
                        f"{work.name} still runs after {timeout_s} s; wait longer, or abort"
                        " the group"
                    )
                self._changed.wait(_TICK_S / 10)

    def ensure_progress(self) -> None:
        """Check at once what the device has finished."""
        with self._lock:
            self._finish_done()

    def abort(self, error: Exception) -> None:
        """Set the abort signal; the watchdog's thread does the rest. Does not block."""
        self._abort_signal.set(error)
        with self._lock:
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, after `abort`."""
        self._thread.join(timeout_s)

    def _finish_done(self) -> None:
        """Finish the works that the device has done, in order."""
        while (
            self._pending and self._abort_signal.error is None and self._pending[0].event.is_done()
        ):
            self._pending.popleft().work.finish()
            self._since = time.monotonic()
            self._changed.notify_all()

    def _run(self) -> None:
        exchanged_at = 0.0
        while self._abort_signal.error is None:
            with self._lock:
                self._finish_done()
                # Checked under the lock: `abort` notifies once, perhaps before this thread waits.
                if self._abort_signal.error is None:
                    self._changed.wait(_TICK_S if self._pending else None)
                head = self._pending[0] if self._pending else None
            if head is None or self._abort_signal.error is not None:
                continue
            now = time.monotonic()
            age_s = now - self._since
            if now - exchanged_at >= _PROGRESS_S and age_s >= _PROGRESS_S:
                exchanged_at = now
                self._attempt(partial(self._exchange_progress, head, age_s))
            if (error := async_error(self._communicator)) is not None:
                self._abort_signal.set(
                    PeerLost(
                        f"NCCL reports {error}: a rank or the network is gone; rejoin to continue"
                        " in the next generation",
                        rank=-1,
                        address="unknown",
                    )
                )
            elif age_s >= self._timeout_s:
                self._abort_signal.set(self._diagnose(head))
        self._leave()

    def _exchange_progress(self, head: PendingCollective, age_s: float) -> None:
        """Publish the progress of this rank, and set the abort signal if another rank has left."""
        progress = json.dumps([head.number, head.work.name]).encode()
        self._store.set(f"nccl/at/{self._rank}", progress)
        rank, kind, about = json.loads(self._store.get("nccl/left", _STORE_S))
        if rank != self._rank and (kind != MessageKind.CLOSED or age_s >= _CLOSED_S):
            self._abort_signal.set(shutdown_error(MessageKind(kind), about, rank, f"rank {rank}"))

    def _diagnose(self, head: PendingCollective) -> Exception:
        """Return the error of a collective that timed out: which ranks it waits for."""
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
            calls = "; ".join(f"rank {rank}: {name}" for rank, name in other.items())
            return CollectiveMismatch(
                f"rank {self._rank} called {head.work.name} while others called something else"
                f" ({calls}); all ranks must call the same collectives in the same order"
            )
        names = ", ".join(f"rank {rank}" for rank in silent) or "the device"
        return CollectiveTimeout(
            f"{head.work.name} timed out waiting for {names}; see whether it still runs, or raise"
            " the group's timeout, then rejoin",
            ranks=silent,
        )

    def _leave(self) -> None:
        error = self._abort_signal.error
        with self._lock:
            self._finish_all(error)
        # `destroy` waits for collectives of the peers: not after a failure.
        if isinstance(error, GroupClosed) and not self._has_unfinished:
            self._communicator.destroy()
        else:
            self._communicator.abort()
        self._attempt(lambda: self._publish_reason(error))

    def _finish_all(self, error: Exception | None) -> None:
        while self._pending:
            pending = self._pending.popleft()
            # After a close what the device has finished still succeeds.
            done = not isinstance(error, GroupAborted) and pending.event.is_done()
            self._has_unfinished = self._has_unfinished or not done
            pending.work.finish(None if done else error)
        self._changed.notify_all()

    def _publish_reason(self, error: Exception | None) -> None:
        kind, about = shutdown_reason(error, self._rank)
        if kind is MessageKind.CLOSED:
            try:
                self._store.get("nccl/left", _STORE_S)
            except TimeoutError:
                pass
            else:
                return  # another rank has published a better reason
        self._store.set("nccl/left", json.dumps([self._rank, int(kind), about]).encode())

    def _attempt(self, act: Callable[[], None]) -> None:
        """Call a function and ignore its failure: the store may be gone with the generation."""
        try:
            act()
        except Exception:
            return
