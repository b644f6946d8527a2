"""Reads the request of a gRPC call once the call is authorised, within a time limit.

A thread waits for the body of a request, and gRPC puts no limit on that wait: headers that no body
follows would hold the thread until the deadline, which the client chooses.
"""

import logging
import threading
import time
from collections.abc import Iterator
from typing import final

import grpc

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.transport.watchdog import Watchdog

_log = logging.getLogger(__name__)

BODY_S = 30.0
"""Longest time a request without large arrays may take to arrive."""

SLOWEST_BYTES_S = 2e6
"""A larger request may take this much longer; the same rate as on lanes."""


def body_limit_s(max_bytes: int) -> float:
    """Return how long a request of at most `max_bytes` may take to arrive."""
    return BODY_S + max_bytes / SLOWEST_BYTES_S


class ClientGone(Exception):
    """The call ended before its request had arrived."""


@final
class BodyReader:
    """Reads requests; ends calls whose request does not arrive.

    Args:
        watchdog: Ends calls at their deadline.
        limit_s: Longest time that a request may take to arrive.
        most: Calls that may wait for their requests at once; beyond it the longest waiting one is
            ended. For rpcs with small requests, which arrive with the headers. None for no limit.
    """

    def __init__(
        self, watchdog: "Watchdog[grpc.ServicerContext]", limit_s: float, most: int | None = None
    ) -> None:
        self._watchdog = watchdog
        self._limit_s = limit_s
        self._most = most
        self._lock = threading.Lock()  # guards _waiting
        self._waiting: dict[grpc.ServicerContext, None] = {}

    def read(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Return the request.

        Raises:
            InvalidRequest: The client sent none.
            ClientGone: The call has ended.
        """
        if self._most is not None:
            self._make_room(context, self._most)
        self._watchdog.begin(context, time.monotonic() + self._limit_s)
        try:
            return next(requests)
        except StopIteration:
            raise InvalidRequest("the call has no request; send exactly one message") from None
        except grpc.RpcError:
            raise ClientGone("the call ended before its request had arrived") from None
        finally:
            self._watchdog.end(context)
            if self._most is not None:
                with self._lock:
                    self._waiting.pop(context, None)

    def _make_room(self, context: grpc.ServicerContext, most: int) -> None:
        with self._lock:
            oldest = next(iter(self._waiting)) if len(self._waiting) >= most else None
            if oldest is not None:
                del self._waiting[oldest]
            self._waiting[context] = None
        if oldest is not None:
            end_late_call(oldest)


def end_late_call(context: grpc.ServicerContext) -> None:
    """End a call whose client does not do its part in time: the client sees it cancelled."""
    _log.warning("a client is too slow, its call is ended", extra={"peer": context.peer()})
    context.cancel()
