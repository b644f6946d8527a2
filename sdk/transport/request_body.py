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
        most: Calls that may wait for their requests for that long; if there are more, the longest
            waiting have `hurried_s` only. For rpcs with small requests, which arrive with the
            headers. None for no limit.
        hurried_s: See `most`; a busy server itself may take a while to read a request.
    """

    def __init__(
        self,
        watchdog: "Watchdog[grpc.ServicerContext]",
        limit_s: float,
        most: int | None = None,
        hurried_s: float = 0.5,
    ) -> None:
        self._watchdog = watchdog
        self._limit_s = limit_s
        self._most = most
        self._hurried_s = hurried_s
        self._lock = threading.Lock()  # guards _waiting
        self._waiting: dict[grpc.ServicerContext, float] = {}  # since when, oldest first

    def read(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Return the request.

        Raises:
            InvalidRequest: The client sent none.
            ClientGone: The call has ended.
        """
        now = time.monotonic()
        self._watchdog.begin(context, now + self._limit_s)
        if self._most is not None:
            self._hurry(context, now, self._most)
        try:
            return next(requests)
        except StopIteration:
            raise InvalidRequest("the call has no request; send exactly one message") from None
        except grpc.RpcError:
            raise ClientGone("the call ended before its request had arrived") from None
        finally:
            if self._most is not None:
                with self._lock:
                    self._waiting.pop(context, None)
            self._watchdog.end(context)

    def _hurry(self, context: grpc.ServicerContext, now: float, most: int) -> None:
        """Count a call in; if there are too many, shorten the time of the longest waiting."""
        with self._lock:
            self._waiting[context] = now
            if len(self._waiting) > most:
                oldest = next(iter(self._waiting))
                # Under the lock, so that it cannot end between the two.
                self._watchdog.begin(oldest, self._waiting.pop(oldest) + self._hurried_s)


def end_late_call(context: grpc.ServicerContext) -> None:
    """End a call whose client does not do its part in time: the client sees it cancelled."""
    _log.warning("a client is too slow, its call is ended", extra={"peer": context.peer()})
    context.cancel()
