"""The calls of a backward share that have no answer yet."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, final

from gradmesh.protos.errors import MeshError
from gradmesh.protos.method import Body, Method
from gradmesh.sdk.autograd.codec import lost
from gradmesh.sdk.transport.channel import Channel, PendingCall
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context


class Peers(Protocol):
    """How a process reaches the others; its RPC agent."""

    @property
    def name(self) -> str:
        """Name of this process."""

    @property
    def incarnation(self) -> int:
        """Incarnation of this process."""

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the connection to a worker.

        Raises:
            WorkerNotFound: There is no such worker.
        """

    def suspect(self, worker: str) -> None:
        """Ask anew where a worker is before the next message: it did not answer."""


@final
class PassCalls:
    """Calls under way to other workers and to servers of tables.

    Args:
        ctx: The context, which knows how workers are reached.
        deadline: Of each call.
    """

    def __init__(self, ctx: "Context", deadline: Deadline) -> None:
        self._ctx = ctx
        self._deadline = deadline
        self._lock = threading.Lock()  # guards _calls
        self._calls: list[tuple[str | None, PendingCall]] = []

    def send(self, worker: str, method: Method, request: Body) -> None:
        """Begin a call to a worker.

        Raises:
            WorkerLost: It cannot be reached.
        """
        peers = self._ctx.peers
        try:
            channel = peers.channel(worker, self._deadline)
            call = channel.start(method, request, self._deadline)
        except MeshError as error:
            raise lost(worker, error) from error
        with self._lock:
            self._calls.append((worker, call))

    def add(self, call: PendingCall) -> None:
        """Look after a call to a server."""
        with self._lock:
            self._calls.append((None, call))

    def collect(self, take: Callable[[Any], None]) -> MeshError | None:
        """Wait for all answers; return the first failure, if there was one.

        Args:
            take: Given what each worker answered; called by this thread.
        """
        failure: MeshError | None = None
        while self._calls:
            worker, call = self._calls[0]
            try:
                answer = call.result()
                if worker is not None:
                    take(answer)
            except MeshError as error:
                failure = failure or (error if worker is None else self._explain(worker, error))
            finally:
                with self._lock:
                    self._calls.pop(0)
        return failure

    def _explain(self, worker: str, error: MeshError) -> MeshError:
        found = lost(worker, error)
        if found is not error:
            self._ctx.peers.suspect(worker)
        return found

    def cancel(self) -> None:
        """Wake a thread that waits for answers nobody needs any more."""
        with self._lock:
            calls = list(self._calls)
        for _, call in calls:
            call.cancel()
