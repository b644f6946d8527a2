"""Release contexts on other workers, in the background.

Leaving a context does not block its thread. Releases within 20 ms are sent to a worker in one
message. A message without a reply is retried a few times; after that the worker releases the
contexts when the lease of the process that opened them expires.
"""

import logging
import threading
import time
from collections.abc import Collection
from typing import final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import MeshError, WorkerNotFound
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

# A longer interval saves messages, but contexts kept longer cost the garbage collectors of other
# workers more.
_GATHER_S = 0.02
_CALL_S = 2.0
_ATTEMPTS = 20
_FIRST_PAUSE_S = 0.2
_FACTOR = 1.5
_MAX_PAUSE_S = 5.0
_MAX_CONTEXTS = 512
# Releases kept for a worker that does not answer.
_MAX_BACKLOG = 16_384


@final
class _Backlog:
    """The releases that one worker has not acknowledged."""

    def __init__(self) -> None:
        self.contexts: list[context_pb2.ContextId] = []
        self.failures = 0
        self.due = 0.0


@final
class Releaser:
    """Send releases on one thread, which starts with the first one.

    Args:
        agent: Reaches the workers.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._changed = threading.Condition()  # guards all below
        self._backlogs: dict[str, _Backlog] = {}
        self._thread: threading.Thread | None = None
        self._idle = False
        self._closed = False
        self._closing = threading.Event()

    def put(self, context: context_pb2.ContextId, workers: Collection[str]) -> None:
        """Schedule the release of a context on some workers."""
        with self._changed:
            if self._closed:
                return
            for worker in workers:
                self._backlogs.setdefault(worker, _Backlog()).contexts.append(context)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="contexts", daemon=True)
                self._thread.start()
            elif self._idle:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                while not self._closed and not self._backlogs:
                    self._changed.wait()
                self._idle = False
            # Gather what is released a little later; the thread that leaves contexts is not woken.
            self._closing.wait(_GATHER_S)
            with self._changed:
                closed, now = self._closed, time.monotonic()
                due = {w: d for w, d in self._backlogs.items() if closed or d.due <= now}
                for worker in due:
                    del self._backlogs[worker]
            for worker, backlog in due.items():
                self._send(worker, backlog, last=closed)
            if closed:
                return
            if not due:
                self._closing.wait(_FIRST_PAUSE_S)

    def _send(self, worker: str, backlog: _Backlog, last: bool) -> None:
        sent = 0
        try:
            deadline = Deadline.after(min(_CALL_S, 0.2) if last else _CALL_S)
            channel = self._agent.channel(worker, deadline)
            while sent < len(backlog.contexts):
                some = backlog.contexts[sent : sent + _MAX_CONTEXTS]
                request = owner_pb2.ReleaseContextRequest(context=some[0], others=some[1:])
                channel.call(METHODS["ReleaseContext"], request, deadline)
                sent += len(some)
        except WorkerNotFound:
            return  # it is not a member: what it kept ended with it, or ends with our lease
        except MeshError as error:
            self._failed(worker, backlog, sent, error, last)

    def _failed(
        self, worker: str, backlog: _Backlog, sent: int, error: MeshError, last: bool
    ) -> None:
        backlog.failures += 1
        del backlog.contexts[:sent]
        if last or backlog.failures >= _ATTEMPTS:
            _log.info(
                "contexts not released",
                extra={"worker": worker, "count": len(backlog.contexts), "error": error.message},
            )
            return
        pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * _FACTOR**backlog.failures)
        backlog.due = time.monotonic() + pause_s
        with self._changed:
            newer = self._backlogs.get(worker)
            if newer is not None:
                backlog.contexts += newer.contexts
                # The worker releases the oldest with our lease.
                del backlog.contexts[:-_MAX_BACKLOG]
            self._backlogs[worker] = backlog

    def close(self, timeout_s: float) -> None:
        """Send the outstanding releases once more, then stop; may be called twice."""
        with self._changed:
            self._closed = True
            self._closing.set()
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
