"""Control messages about references: deletions and acceptances, sent until they arrive.

They are repeatable, so they are sent again when their outcome is unknown. They are dropped only
when their receiver is known to be gone, or after a timeout: the receiver's leases clean up then.
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
from gradmesh.sdk.rpc.senders import Senders
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
    """Channels to other workers."""

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the channel to a worker."""

    def is_gone(self, worker: WorkerId, deadline: Deadline) -> bool:
        """Return whether a process was a member and no longer is."""

    def suspect(self, worker: str) -> None:
        """Record that a worker did not respond."""


@final
class RRefControl:
    """Sends control messages about references in the background.

    Args:
        directory: Channels to the receivers.
        run: Runs a task on a thread.
    """

    def __init__(self, directory: WorkerChannels, run: Run) -> None:
        self._directory = directory
        self._senders = Senders(run)
        # Reentrant: the garbage collector may call `later` during a put.
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards _under_way, _deletions and _thread
        self._under_way = 0
        self._deletions: dict[WorkerId, list[value_pb2.RemoteRef]] = defaultdict(list)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="rref-control", daemon=True)
        self._thread.start()

    def later(self, task: Callable[[], object]) -> None:
        """Run a task soon; may be called by the garbage collector."""
        self._queue.put(task)

    def delete(self, owner: WorkerId, ref: value_pb2.RemoteRef) -> None:
        """Send the owner the deletion of a reference; deletions are batched."""
        with self._changed:
            refs = self._deletions[owner]
            refs.append(ref)
            first = len(refs) == 1
            self._under_way += first
        if first:
            self.later(lambda: self._delete_all(owner))

    def accept(self, parent: WorkerId, fork: GlobalId) -> None:
        """Confirm to its sender that the owner has registered a received reference."""
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

        self._senders.send(worker.name, task)

    def deliver(self, name: str, worker: WorkerId, request: Body) -> None:
        """Send a repeatable message until it arrives, its receiver is gone, or a timeout.

        Args:
            name: Of the rpc.
            worker: The receiver.
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
                return  # its values and references ended with it
            except MeshError as error:
                failure, gone = error, True
            closing = self._closing.is_set()
            if gone or closing or deadline.remaining_s() < (pause_s := next(pauses)):
                extra = {"rpc": name, "worker": worker.name, "error": failure.message}
                _log.warning("a message was given up", extra=extra)
                return
            self._closing.wait(pause_s)

    def _is_gone(self, worker: WorkerId, deadline: Deadline) -> bool:
        try:
            return self._directory.is_gone(worker, deadline)
        except MeshError:
            return False  # the coordinator does not respond, either

    def _work(self) -> None:
        task: Callable[[], object] | None = self._queue.get()
        while task is not None:
            # Batches the deletions of a loop; most creations have a reply by then.
            self._closing.wait(_GATHER_S)
            while task is not None:
                try:
                    task()
                except Exception:
                    _log.exception("a message about references failed")
                del task  # an idle thread must not keep its last task alive
                try:
                    task = self._queue.get_nowait()
                except queue.Empty:
                    task = self._queue.get()
                    break

    def flush(self, deadline: Deadline) -> bool:
        """Wait until all messages so far have arrived or were dropped."""
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
