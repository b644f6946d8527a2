"""Tells other workers, behind the program's back, which contexts are over.

A context that ends costs its thread nothing. What ends within a fiftieth of a second goes to a
worker in one message. A worker that does not answer is told again, then left to itself: its lease
on the contexts runs out with the life of whoever opened them.
"""

import logging
import threading
import time
from collections.abc import Collection
from typing import final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import MeshError
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.autograd.calls import Peers
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

# Longer would save messages, but what the others keep meanwhile costs their collectors more.
_GATHER_S = 0.02
_CALL_S = 2.0
_ATTEMPTS = 20
_FIRST_PAUSE_S = 0.2
_FACTOR = 1.5
_MAX_PAUSE_S = 5.0
_MAX_CONTEXTS = 512


@final
class _Debt:
    """What one worker is to be told."""

    def __init__(self) -> None:
        self.contexts: list[context_pb2.ContextId] = []
        self.failures = 0
        self.due = 0.0


@final
class Releaser:
    """One thread that tells; it begins with the first context that is over.

    Args:
        peers: How workers are reached.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._changed = threading.Condition()  # guards all below
        self._debts: dict[str, _Debt] = {}
        self._thread: threading.Thread | None = None
        self._idle = False
        self._closed = False
        self._closing = threading.Event()

    def put(self, context: context_pb2.ContextId, workers: Collection[str]) -> None:
        """Tell workers, soon, that a context is over."""
        with self._changed:
            if self._closed:
                return
            for worker in workers:
                self._debts.setdefault(worker, _Debt()).contexts.append(context)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="contexts", daemon=True)
                self._thread.start()
            elif self._idle:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                while not self._closed and not self._debts:
                    self._changed.wait()
                self._idle = False
            # What ends a little later goes along; a thread that ends contexts is not disturbed.
            self._closing.wait(_GATHER_S)
            with self._changed:
                closed, now = self._closed, time.monotonic()
                due = {w: d for w, d in self._debts.items() if closed or d.due <= now}
                for worker in due:
                    del self._debts[worker]
            for worker, debt in due.items():
                self._tell(worker, debt, last=closed)
            if closed:
                return
            if not due:
                self._closing.wait(_FIRST_PAUSE_S)

    def _tell(self, worker: str, debt: _Debt, last: bool) -> None:
        told = 0
        try:
            deadline = Deadline.after(min(_CALL_S, 0.2) if last else _CALL_S)
            channel = self._peers.channel(worker, deadline)
            while told < len(debt.contexts):
                some = debt.contexts[told : told + _MAX_CONTEXTS]
                request = owner_pb2.ReleaseContextRequest(context=some[0], others=some[1:])
                channel.call(METHODS["ReleaseContext"], request, deadline)
                told += len(some)
        except MeshError as error:
            self._failed(worker, debt, told, error, last)

    def _failed(self, worker: str, debt: _Debt, told: int, error: MeshError, last: bool) -> None:
        debt.failures += 1
        del debt.contexts[:told]
        if last or debt.failures >= _ATTEMPTS:
            _log.info(
                "contexts not released",
                extra={"worker": worker, "count": len(debt.contexts), "error": error.message},
            )
            return
        pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * _FACTOR**debt.failures)
        debt.due = time.monotonic() + pause_s
        with self._changed:
            newer = self._debts.get(worker)
            if newer is not None:
                debt.contexts += newer.contexts
            self._debts[worker] = debt

    def close(self, timeout_s: float) -> None:
        """Tell once more what is left, then stop; may be called twice."""
        with self._changed:
            self._closed = True
            self._closing.set()
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
