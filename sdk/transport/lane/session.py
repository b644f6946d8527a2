"""The server's end of one lane connection: calls one after the other, errors as on gRPC."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from gradmesh.protos.errors import InvalidFrame, InvalidRequest, MeshError
from gradmesh.protos.frame import Array, Frame, parse
from gradmesh.protos.lane import FAILED, SUCCEEDED
from gradmesh.sdk.transport.boundary import internal_error, to_proto
from gradmesh.sdk.transport.call import MAX_CALL_S, Call, Caller, RpcHandler
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.arena import IDLE_S
from gradmesh.sdk.transport.lane.link import FOREVER, Link, Received
from gradmesh.sdk.transport.lane.stream import LaneBroken
from gradmesh.sdk.transport.metrics import RpcMetrics

_log = logging.getLogger(__name__)

# How long a client may take to read its response.
_RESPONSE_S = 30.0


@final
class Session:
    """Serves one connection until either end closes it.

    Args:
        link: The connection.
        handlers: The handlers of hot rpcs, by their numbers on lanes.
        metrics: Where calls are counted.
        peer: Where the calls come from.
        caller: Who sends the calls.
        is_draining: Returns whether the process is draining.
    """

    def __init__(
        self,
        link: Link,
        handlers: Mapping[int, RpcHandler],
        metrics: RpcMetrics,
        peer: str,
        caller: Caller,
        is_draining: Callable[[], bool],
    ) -> None:
        self.link = link
        self._handlers = handlers
        self._metrics = metrics
        self._peer = peer
        self.caller = caller
        self._is_draining = is_draining

    def run(self) -> None:
        """Serve until the connection ends."""
        try:
            while self.step():
                pass
        finally:
            self.link.close()

    def step(self) -> bool:
        """Serve one call; return whether to serve another."""
        if self._is_draining():
            return False
        try:
            self._serve(self._next())
        except LaneBroken:
            return False  # the client closed it
        except InvalidFrame as error:
            _log.warning("bad lane frame", extra={"peer": self._peer, "error": str(error)})
            self._refuse(error)
            return False
        return True

    def _next(self) -> Received:
        """Wait for a request; release memory when none arrives for long."""
        try:
            return self.link.receive(time.monotonic() + IDLE_S)
        except TimeoutError:
            self.link.trim()
        return self.link.receive(FOREVER)

    def _serve(self, request: Received) -> None:
        begun = time.perf_counter()
        handler = self._handlers.get(request.number)
        path = handler.method.path if handler is not None else "?"
        link = self.link
        link.arena.begin()
        status, sent = "OK", 0
        try:
            head, arrays = self._handle(handler, request)
            sent = self._send(SUCCEEDED, request.call, head, arrays)
        except LaneBroken:
            raise
        except MeshError as error:
            status = self._fail(request.call, error)
        # A handler that calls sys.exit must not leave its client waiting until the deadline.
        except BaseException:
            status = self._fail(request.call, internal_error(path))
        seconds = time.perf_counter() - begun
        self._metrics.observe(path, status, seconds, sent, request.size, link.kind)

    def _handle(
        self, handler: RpcHandler | None, request: Received
    ) -> tuple[bytes, Sequence[Array]]:
        """Run the handler; return head and arrays of its response."""
        if handler is None:
            raise InvalidRequest(f"no rpc has number {request.number} on lanes here")
        method, serve = handler
        self.caller.check(method.path)
        message: Any = parse(request.head, method.request_type)
        if method.bulk[0]:
            message = Frame(message, request.arrays)
        elif request.arrays:
            raise InvalidFrame(f"{method.name} takes no arrays")
        limit_s = min(request.deadline_ms / 1000, MAX_CALL_S)
        deadline = Deadline(time.monotonic() + limit_s)
        call = Call(deadline, self._peer, self.link.arena.empty, True, self.caller)
        response = serve(message, call)
        if method.bulk[1]:
            return response.message.SerializeToString(), response.arrays
        return response.SerializeToString(), ()

    def _fail(self, call: int, error: MeshError) -> str:
        """Send an error; return its reason."""
        head = to_proto(error).SerializeToString()
        self._send(FAILED, call, head, ())
        return error.reason

    def _send(self, number: int, call: int, head: bytes, arrays: Sequence[Array]) -> int:
        try:
            return self.link.send(number, call, 0, head, arrays, time.monotonic() + _RESPONSE_S)
        except TimeoutError:
            raise LaneBroken("the client does not read its response") from None

    def _refuse(self, error: InvalidFrame) -> None:
        """Send the client the reason why the connection ends, if it is still there."""
        try:
            self._fail(0, error)
        except LaneBroken:
            return
