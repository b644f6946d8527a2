"""The small messages about references: deletions and acceptances, sent until they arrive.

They are repeatable, so they are sent again when their fate is unknown; only when their receiver is
known to be gone, or after long enough, they are given up: the receiver's leases clean up then.
"""

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol, TypeAlias, final

from gradmesh.protos.common.v1 import value_pb2
from gradmesh.protos.errors import MeshError, Unreachable, WorkerNotFound
from gradmesh.protos.method import Body, Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.ids import GlobalId, WorkerId, fork_proto
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import RetryPolicy

_log = logging.getLogger(__name__)

METHODS: dict[str, Method] = methods_of(pb.DESCRIPTOR.services_by_name["OwnerService"])
"""The rpcs about functions and references."""

_PATIENCE_S = 30.0
_MOST_AT_ONCE = 1000
_GATHER_S = 0.005

Run: TypeAlias = Callable[[Callable[[], object]], None]


class WorkerChannels(Protocol):
    """Whoever has channels to other workers."""

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the channel to a worker."""

    def is_gone(self, worker: WorkerId, deadline: Deadline) -> bool:
        """Tell whether a process is known to be a member no more."""

    def suspect(self, worker: str) -> None:
        """Hear that a worker did not answer."""


@final
class RRefControl:
    """Sends messages about references in the background.

    Args:
        peers: Where to.
        run: Runs a task on a thread.
    """

    def __init__(self, directory: WorkerChannels, run: Run) -> None:
        self._directory = directory
        self._run = run
        # Reentrant: the garbage collector may call us in the middle of a put.
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards _under_way, _deletions and _thread
        self._under_way = 0
        self._deletions: dict[WorkerId, list[value_pb2.RemoteRef]] = defaultdict(list)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin to work."""
        self._thread = threading.Thread(target=self._work, name="rref-control", daemon=True)
        self._thread.start()

    def later(self, task: Callable[[], object]) -> None:
        """Do something soon; may be called by the garbage collector."""
        self._queue.put(task)

    def delete(self, owner: WorkerId, ref: value_pb2.RemoteRef) -> None:
        """Tell the owner that a reference is gone; many at once go in one message."""
        with self._changed:
            refs = self._deletions[owner]
            refs.append(ref)
            first = len(refs) == 1
            self._under_way += first
        if first:
            self.later(lambda: self._delete_all(owner))

    def accept(self, parent: WorkerId, fork: GlobalId) -> None:
        """Tell whoever passed a reference on that its owner knows the new one."""
        request = pb.AcceptForkRequest(fork=fork_proto(fork))
        with self._changed:
            self._under_way += 1
        self.later(lambda: self._send("AcceptFork", parent, request))

    def _delete_all(self, owner: WorkerId) -> None:
        with self._changed:
            refs = self._deletions.pop(owner)
        for place in range(0, len(refs), _MOST_AT_ONCE):
            first, *more = refs[place : place + _MOST_AT_ONCE]
            with self._changed:
                self._under_way += place > 0
            self._send("DeleteRef", owner, pb.DeleteRefRequest(ref=first, more=more))

    def _send(self, name: str, worker: WorkerId, request: Body) -> None:
        def task() -> None:
            try:
                self.deliver(name, worker, request)
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()

        try:
            self._run(task)
        except MeshError:
            task()  # no thread is left; this one has time

    def deliver(self, name: str, worker: WorkerId, request: Body) -> None:
        """Send a repeatable message until it arrives, its receiver is gone, or it takes too long.

        Args:
            name: Of the rpc.
            worker: Who gets it.
            request: What to send.
        """
        deadline = Deadline.after(_PATIENCE_S)
        pauses = RetryPolicy().pauses()
        while True:
            try:
                self._directory.channel(worker.name, deadline).call(
                    METHODS[name], request, deadline
                )
                return
            except Unreachable as error:
                self._directory.suspect(worker.name)
                failure: MeshError = error
                gone = self._is_gone(worker, deadline)
            except WorkerNotFound:
                return  # and all it kept for us went with it
            except MeshError as error:
                failure, gone = error, True
            closing = self._closing.is_set()
            if gone or closing or deadline.remaining_s() < (pause_s := next(pauses)):
                told = {"rpc": name, "worker": worker.name, "error": failure.message}
                _log.warning("a message was given up", extra=told)
                return
            self._closing.wait(pause_s)

    def _is_gone(self, worker: WorkerId, deadline: Deadline) -> bool:
        try:
            return self._directory.is_gone(worker, deadline)
        except MeshError:
            return False  # the coordinator is silent, too

    def _work(self) -> None:
        task: Callable[[], object] | None = self._queue.get()
        while task is not None:
            # Deletions of a loop go in one message, and most creations are answered by then.
            self._closing.wait(_GATHER_S)
            while task is not None:
                try:
                    task()
                except Exception:
                    _log.exception("a message about references failed")
                del task  # what it holds is not ours to keep while we wait
                try:
                    task = self._queue.get_nowait()
                except queue.Empty:
                    task = self._queue.get()
                    break

    def flush(self, deadline: Deadline) -> bool:
        """Wait until everything asked for so far has arrived or was given up."""
        seen = threading.Event()
        self._queue.put(seen.set)
        if self._thread is not None and not seen.wait(deadline.remaining_s()):
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._under_way == 0, deadline.remaining_s())

    def close(self) -> None:
        """End the thread; may be called twice."""
        thread, self._thread = self._thread, None
        self._closing.set()
        self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
