"""The calls of a backward share that have no reply yet."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from gradmesh.protos.errors import MeshError
from gradmesh.protos.method import Body, Method
from gradmesh.sdk.autograd.codec import lost
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context


@final
class PassCalls:
    """Track the calls under way to other workers and to parameter servers.

    Args:
        ctx: The context, which has the channels to workers.
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
        agent = self._ctx.agent
        try:
            channel = agent.channel(worker, self._deadline)
            call = channel.start(method, request, self._deadline)
        except MeshError as error:
            raise lost(worker, error) from error
        with self._lock:
            self._calls.append((worker, call))

    def add(self, call: PendingCall) -> None:
        """Track a call to a parameter server."""
        with self._lock:
            self._calls.append((None, call))

    def collect(self, take: Callable[[Any], None]) -> MeshError | None:
        """Wait for all replies; return the first failure, if there was one.

        Args:
            take: Called on this thread with each worker's reply.
        """
        failure: MeshError | None = None
        while self._calls:
            worker, call = self._calls[0]
            try:
                answer = call.result()
                if worker is not None:
                    take(answer)
            except MeshError as error:
                failure = failure or (error if worker is None else self._lost(worker, error))
            finally:
                with self._lock:
                    self._calls.pop(0)
        return failure

    def _lost(self, worker: str, error: MeshError) -> MeshError:
        found = lost(worker, error)
        if found is not error:
            self._ctx.agent.suspect(worker)
        return found

    def cancel(self) -> None:
        """Cancel the calls: their replies are not needed any more."""
        with self._lock:
            calls = list(self._calls)
        for _, call in calls:
            call.cancel()
