"""The threads of a gRPC server: which call gets which, and what a call may hold meanwhile.

Calls that renew leases have threads of their own, streams too, and refusals and health probes need
none.
"""

import time
from typing import NamedTuple, final

import grpc

from gradmesh.protos import limits
from gradmesh.protos.errors import LaneUnavailable, Overloaded
from gradmesh.protos.rpcs import RESERVED
from gradmesh.sdk.transport.call import Caller
from gradmesh.sdk.transport.call_pool import CallPool, InlinePool
from gradmesh.sdk.transport.lane.arena import BIG_BYTES
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE
from gradmesh.sdk.transport.request_body import BodyReader, body_limit_s, end_late_call
from gradmesh.sdk.transport.watchdog import Watchdog

# A heartbeat fits into one packet with its headers. Calls whose request does not follow hold most
# of these threads for half a second at most.
_LEASE_THREADS, _LEASE_BODIES, _LEASE_BODY_S = 48, 8, 5.0


class Place(NamedTuple):
    """Where a call is served, and who reads its request."""

    pool: CallPool
    body: BodyReader


@final
class ServerThreads:
    """The threads of one server.

    Args:
        threads: Calls served at once, beside those of reserved rpcs.
        streams: Streams served at once; each holds a thread.
        max_frame_bytes: Largest request.
    """

    def __init__(self, threads: int, streams: int, max_frame_bytes: int) -> None:
        self.inline = InlinePool()
        self.watchdog: Watchdog[grpc.ServicerContext] = Watchdog(end_late_call, "call-watch")
        queue = limits.MAX_QUEUED_CALLS
        main = BodyReader(self.watchdog, body_limit_s(max_frame_bytes))
        lease = BodyReader(self.watchdog, _LEASE_BODY_S, most=_LEASE_BODIES)
        self.main = CallPool(threads, "rpc", queue=queue)
        # Half of `threads` may wait for updates, each in a renewal of a lease.
        count = threads // 2 + _LEASE_THREADS
        self._lease = CallPool(count, "rpc-lease", queue=queue, share=count // 4)
        self._streams = CallPool(streams, "lane-stream", queue=0)
        self._places = {f"/{path}": Place(self._lease, lease) for path in RESERVED}
        self._places[EXCHANGE.path] = Place(self._streams, main)
        self._default = Place(self.main, main)

    def take(self, path: str, caller: Caller) -> Place:
        """Return where to serve the call that gRPC submits next on this thread.

        Raises:
            Overloaded: Too many calls wait already.
            LaneUnavailable: Too many streams are open.
        """
        place = self._places.get(path, self._default)
        if place.pool.take(caller):
            return place
        if place.pool is self._streams:
            raise LaneUnavailable("too many streams are open; raise transport.max_lanes")
        raise Overloaded(
            f"too many calls wait here, {limits.MAX_QUEUED_CALLS} at most and half as many of one "
            "caller; send fewer at once"
        )

    def limit_response(self, context: grpc.ServicerContext, size: int) -> None:
        """Drop a large response if the client does not read it in time."""
        if size > BIG_BYTES:
            self.watchdog.begin(context, time.monotonic() + body_limit_s(size))
            if not context.add_callback(lambda: self.watchdog.end(context)):
                self.watchdog.end(context)

    def close(self) -> None:
        """Serve no more calls."""
        for pool in (self.main, self._lease, self._streams):
            pool.shutdown(wait=False, cancel_futures=True)
        self.watchdog.close()
