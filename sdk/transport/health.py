"""The health service, grpc.health.v1.Health: open to every caller, so its cost is bounded.

`Check` is answered on gRPC's polling thread, without a queue and without reading the request: every
service of a process is served or none. `Watch` has a few threads of its own and refuses more
watchers. Nothing is sent under a lock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import grpc
from grpc_health.v1 import health_pb2

from gradmesh.sdk.transport.call import MAX_CALL_S
from gradmesh.sdk.transport.call_pool import InlinePool
from gradmesh.sdk.transport.watchdog import Watchdog

SERVICE = "grpc.health.v1.Health"
CHECK_PATH = f"/{SERVICE}/Check"
MAX_WATCHERS = 16
"""Watches under way at once; each holds a thread."""

_WATCH_PATH = f"/{SERVICE}/Watch"
_SERVING, _NOT_SERVING = (
    bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
    for status in (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
)


@final
class HealthService(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    """Serves Check and Watch.

    Args:
        inline: Runs responses that do not wait.
        watchdog: Ends watches after a while; the client starts another one.
        max_watchers: Watches served at once.
    """

    def __init__(
        self,
        inline: InlinePool,
        watchdog: "Watchdog[grpc.ServicerContext]",
        max_watchers: int = MAX_WATCHERS,
    ) -> None:
        self._watchdog = watchdog
        self._max_watchers = max_watchers
        self._watch_pool = ThreadPoolExecutor(max_watchers, thread_name_prefix="health-watch")
        self._changed = threading.Condition()  # guards _watchers and _is_serving
        self._watchers = 0
        self._is_serving = False
        self._check = _unary(self._answer, inline)
        self._refusal = _unary(self._refuse, inline)
        watch: Any = self._watch
        self._watch_handler: Any = grpc.stream_stream_rpc_method_handler(
            _on(self._watch_pool, watch)
        )

    def set_serving(self, is_serving: bool) -> None:
        """Set the status that probes and watchers get."""
        with self._changed:
            self._is_serving = is_serving
            self._changed.notify_all()

    def close(self) -> None:
        """Start no more watches."""
        self._watch_pool.shutdown(wait=False, cancel_futures=True)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call, or None for another service."""
        path = handler_call_details.method
        if path == CHECK_PATH:
            return self._check
        if path != _WATCH_PATH:
            return None
        with self._changed:
            if self._watchers >= self._max_watchers:
                return self._refusal
            self._watchers += 1
        return self._watch_handler

    def _answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return self._response()

    def _refuse(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{self._max_watchers} watchers are served at once; call Check",
        )
        raise AssertionError("abort raises")

    def _watch(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the status, and again whenever it changes, until the client ends the call."""
        ended = threading.Event()

        def end() -> None:
            with self._changed:
                ended.set()
                self._changed.notify_all()

        # It also ends the wait for a client that does not read.
        self._watchdog.begin(context, time.monotonic() + MAX_CALL_S)
        try:
            is_active = context.add_callback(end)
            sent: bool | None = None
            while is_active and not ended.is_set():
                with self._changed:
                    if self._is_serving is sent:
                        self._changed.wait(MAX_CALL_S)
                        continue
                    sent = self._is_serving
                yield self._response()
        finally:
            self._watchdog.end(context)
            with self._changed:
                self._watchers -= 1

    def _response(self) -> bytes:
        return _SERVING if self._is_serving else _NOT_SERVING


def _on(pool: ThreadPoolExecutor, behaviour: Callable[..., Any]) -> Any:
    """Return the behaviour, run on a pool."""

    def run(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        return behaviour(requests, context)

    placed: Any = run
    placed.experimental_thread_pool = pool
    return placed


def _unary(behaviour: Callable[..., Any], pool: InlinePool) -> Any:
    # A handler of a stream of requests may respond without having read one.
    return grpc.stream_unary_rpc_method_handler(_on(pool, behaviour))
