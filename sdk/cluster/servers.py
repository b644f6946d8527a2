"""Client of the parameter servers: the shard map and a channel to each server."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, final

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import context_pb2, worker_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import (
    DeadlineExceeded,
    StaleShardMap,
    Unreachable,
)
from gradmesh.protos.method import Body, Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.future import Future, FutureResolver, WaitedSource
from gradmesh.sdk.transport.channel import Channel, PendingCall, RequestWriter
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import RetryPolicy

T = TypeVar("T")

METHODS: dict[str, Method] = {
    **methods_of(parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]),
    **methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]),
}
"""The rpcs of a parameter server by name."""


class ShardMapSource(Protocol):
    """The source of the shard map: the coordinator, at one or several addresses."""

    def get_shard_map(self, deadline: Deadline) -> table_pb2.ShardMap:
        """Wait for the parameter servers and return the shard map."""


@final
class ParameterServers:
    """All parameter servers.

    Args:
        coordinator: The source of the shard map.
        connect: Makes a channel from (address, name).
        max_frame_bytes: Largest message; larger requests are split.
        owner: This process, as the owner of its state on the servers.

    Attributes:
        prepared_step: Newest step of this process that all servers have prepared and may not have
            applied yet; see `steps`.
    """

    def __init__(
        self,
        coordinator: ShardMapSource,
        connect: Callable[[str, str], Channel],
        *,
        max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        owner: worker_pb2.WorkerId | None = None,
    ) -> None:
        self.owner = owner
        self._coordinator = coordinator
        self._connect = connect
        self.max_frame_bytes = max_frame_bytes
        self._resolver = FutureResolver()
        self._lock = threading.Lock()  # guards changes of all below; single reads need none
        self._map: ShardMap | None = None
        self._channels: dict[tuple[str, str], Channel] = {}
        self._closed_bytes = 0
        self._closed = False
        self.prepared_step: context_pb2.StepMark | None = None
        # One fetch at a time: an older answer must not replace a newer one.
        self._fetching = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether no call can be made any more."""
        return self._closed

    def future(self, finish: Callable[[], T]) -> Future[T]:
        """Return a future of work in progress, which `finish` waits for."""
        return Future(WaitedSource(finish, self._resolver))

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Run work on another thread; return a future of its result.

        A thread that waits for the result before the work has started runs it itself.
        """
        future = self.future(work)
        future.done()
        return future

    def held_map(self) -> ShardMap | None:
        """Return the shard map in use, if one was fetched."""
        return self._map

    def shard_map(self, deadline: Deadline) -> ShardMap:
        """Return the shard map in use; fetch it the first time."""
        return self.held_map() or self.refresh(deadline)

    def refresh(self, deadline: Deadline) -> ShardMap:
        """Fetch the shard map again, and wait until all servers have registered.

        Raises:
            DeadlineExceeded: Servers are missing; the message says how many.
        """
        if not self._fetching.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceeded("no shard map came in time; is the coordinator running?")
        try:
            return self._fetch(deadline)
        finally:
            self._fetching.release()

    def _fetch(self, deadline: Deadline) -> ShardMap:
        fresh = map_of(self._coordinator.get_shard_map(deadline))
        with self._lock:
            self._map = fresh
            used = set(zip(fresh.addresses, fresh.names, strict=True))
            for key in self._channels.keys() - used:
                channel = self._channels.pop(key)
                self._closed_bytes += channel.bytes_moved
                channel.close()
        return fresh

    def dial(self, address: str, name: str) -> Channel:
        """Return a channel to a server that may be missing from the map; the caller closes it."""
        return self._connect(address, name)

    def channel(self, shards: ShardMap, shard: int) -> Channel:
        """Return the channel to one server of a map.

        Raises:
            Unreachable: The mesh is closed.
        """
        key = (shards.addresses[shard], shards.names[shard])
        found = self._channels.get(key)
        if found is not None and not self._closed:
            return found
        with self._lock:
            if self._closed:
                raise Unreachable(f"{key[1]}: this mesh is closed; connect again", worker=key[1])
            if key not in self._channels:
                self._channels[key] = self._connect(*key)
            return self._channels[key]

    def call_each(
        self,
        shards: ShardMap,
        name: str,
        requests: Mapping[int, Body | RequestWriter],
        deadline: Deadline,
    ) -> dict[int, Any]:
        """Call several servers at once; return the responses by shard.

        Raises:
            MeshError: The first failure; the calls still under way are cancelled.
        """
        calls = [(self.channel(shards, shard), request) for shard, request in requests.items()]
        return dict(zip(requests, call_all(METHODS[name], calls, deadline), strict=True))

    def ask_all(self, name: str, request: Body, deadline: Deadline) -> list[Any]:
        """Call every server of a fresh shard map with one request; return the answers by shard."""
        shards = self.refresh(deadline)
        requests = dict.fromkeys(range(len(shards.names)), request)
        return list(self.call_each(shards, name, requests, deadline).values())

    def with_map(self, attempt: Callable[[ShardMap], T], deadline: Deadline) -> T:
        """Run `attempt` with the shard map; repeat it with a newer one while servers move.

        Args:
            attempt: Gets the map; must be repeatable.
            deadline: No attempt begins after it.
        """
        shards = self.shard_map(deadline)
        pauses: Iterator[float] | None = None
        while True:
            try:
                return attempt(shards)
            except (StaleShardMap, Unreachable) as error:
                pauses = pauses or RetryPolicy().pauses()
                pause_s = next(pauses)
                if self._closed or deadline.remaining_s() <= pause_s:
                    raise
                # A server with a newer map is ready already.
                is_newer = int(error.metadata.get("current", 0)) > shards.epoch
            if self.held_map() is shards and not is_newer:
                time.sleep(pause_s)
            shards = self.refresh(deadline)

    def bytes_moved(self) -> int:
        """Return the message bytes exchanged with all servers so far."""
        with self._lock:
            return self._closed_bytes + sum(c.bytes_moved for c in self._channels.values())

    def close(self) -> None:
        """Close all channels; may be called twice."""
        with self._lock:
            self._closed = True
            for channel in self._channels.values():
                channel.close()
        self._resolver.close()


@final
class Calls:
    """The same call on several channels, under way at once.

    Args:
        method: The rpc.
        calls: Each channel, and the request or what writes it.
        deadline: Of each.
    """

    def __init__(
        self,
        method: Method,
        calls: Iterable[tuple[Channel, Body | RequestWriter]],
        deadline: Deadline,
    ) -> None:
        self._pending: list[PendingCall] = []
        try:
            for channel, request in calls:
                self._pending.append(channel.start(method, request, deadline))
        except BaseException:
            self.cancel()
            raise

    def responses(self) -> Iterator[Any]:
        """Yield the responses in order; once.

        Raises:
            MeshError: The first failure; the calls still under way are cancelled.
        """
        try:
            while self._pending:
                response = self._pending[0].result()
                del self._pending[0]
                yield response
        finally:
            self.cancel()

    def borrowed(self) -> Iterator[Any]:
        """Yield the responses in order, borrowed: the arrays of each are valid until the next.

        This saves a copy on a fast lane.

        Raises:
            MeshError: The first failure; the calls still under way are cancelled.
        """
        try:
            while self._pending:
                yield self._pending[0].borrow()
                self._pending.pop(0).release()
        finally:
            self.cancel()

    def only(self) -> PendingCall:
        """Return the only call, which the caller waits for and releases."""
        return self._pending.pop()

    def cancel(self) -> None:
        """Cancel the calls still under way."""
        for call in self._pending:
            call.cancel()
        self._pending.clear()


def map_of(wire: table_pb2.ShardMap) -> ShardMap:
    """Return a shard map from its message."""
    return ShardMap(
        wire.epoch,
        [shard.name for shard in wire.shards],
        [shard.address for shard in wire.shards],
        np.asarray(wire.bucket_shards, np.int32),
    )


def call_all(
    method: Method, calls: Iterable[tuple[Channel, Body | RequestWriter]], deadline: Deadline
) -> list[Any]:
    """Make the same call on several channels at once; return the responses in order.

    Raises:
        MeshError: The first failure; the calls still under way are cancelled.
    """
    return list(Calls(method, calls, deadline).responses())
