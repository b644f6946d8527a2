"""The parameter servers as a client sees them: the shard map and a channel to each server."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, final

import numpy as np

from gradmesh.protos.errors import DeadlineExceeded, StaleShardMap, Unreachable
from gradmesh.protos.method import Body, Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.mesh.coordinator import Coordinator
from gradmesh.sdk.transport.channel import Channel, Pending, Writer
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.retry import RetryPolicy

T = TypeVar("T")

METHODS: dict[str, Method] = {
    **methods_of(parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]),
    **methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]),
}
"""The rpcs of a parameter server by name."""


@final
class ParameterServers:
    """All parameter servers.

    Args:
        coordinator: Knows where they are.
        connect: Makes a channel from (address, name).
    """

    def __init__(self, coordinator: Coordinator, connect: Callable[[str, str], Channel]) -> None:
        self._coordinator = coordinator
        self._connect = connect
        self._lock = threading.Lock()  # guards changes of all below; single reads need none
        self._map: ShardMap | None = None
        self._channels: dict[tuple[str, str], Channel] = {}
        self._closed_bytes = 0
        self._closed = False
        # One fetch at a time: an answer that was overtaken must not replace a newer one.
        self._fetching = threading.Lock()

    def held_map(self) -> ShardMap | None:
        """Return the map in use, if one was fetched."""
        return self._map

    def shard_map(self, deadline: Deadline) -> ShardMap:
        """Return the map in use; fetched at first."""
        return self.held_map() or self.refresh(deadline)

    def refresh(self, deadline: Deadline) -> ShardMap:
        """Fetch the map anew, waiting until all servers are there.

        Raises:
            DeadlineExceeded: Servers are missing; the message says how many.
        """
        if not self._fetching.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceeded("the shard map did not come in time; is the coordinator there?")
        try:
            return self._fetch(deadline)
        finally:
            self._fetching.release()

    def _fetch(self, deadline: Deadline) -> ShardMap:
        wire = self._coordinator.get_shard_map(deadline)
        fresh = ShardMap(
            wire.epoch,
            [shard.name for shard in wire.shards],
            [shard.address for shard in wire.shards],
            np.asarray(wire.bucket_shards, np.int32),
        )
        with self._lock:
            self._map = fresh
            used = set(zip(fresh.addresses, fresh.names, strict=True))
            for key in self._channels.keys() - used:
                channel = self._channels.pop(key)
                self._closed_bytes += channel.bytes_moved
                channel.close()
        return fresh

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
        requests: Mapping[int, Body | Writer],
        deadline: Deadline,
        read: Callable[[int, Any], object] | None = None,
    ) -> dict[int, Any]:
        """Call several servers at once; return the responses by shard.

        Args:
            shards: The map.
            name: Of the rpc.
            requests: For each shard the request, or what writes it.
            deadline: Of all calls.
            read: Takes each shard's response while its arrays are still borrowed; saves the copy
                that they otherwise cost on a lane. The responses returned are then of no use.

        Raises:
            GradmeshError: The first failure; calls still under way are given up.
        """
        calls = [(self.channel(shards, shard), request) for shard, request in requests.items()]
        names = list(requests)
        take = None if read is None else lambda place, response: read(names[place], response)
        return dict(zip(names, call_all(METHODS[name], calls, deadline, take), strict=True))

    def with_map(self, attempt: Callable[[ShardMap], T], deadline: Deadline) -> T:
        """Do something with the shard map, again with a newer one when servers have moved.

        Args:
            attempt: Given the map; what it does must be repeatable.
            deadline: No attempt begins after it.
        """
        shards = self.shard_map(deadline)
        pauses: Iterator[float] | None = None
        while True:
            try:
                return attempt(shards)
            except (StaleShardMap, Unreachable):
                pauses = pauses or RetryPolicy().pauses()
                pause_s = next(pauses)
                if self._closed or deadline.remaining_s() <= pause_s:
                    raise
            if self.held_map() is shards:
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


def call_all(
    method: Method,
    calls: Iterable[tuple[Channel, Body | Writer]],
    deadline: Deadline,
    read: Callable[[int, Any], object] | None = None,
) -> list[Any]:
    """Make the same call on several channels at once; return the responses in order.

    Args:
        method: The rpc.
        calls: To whom, and the request or what writes it.
        deadline: Of all calls.
        read: Takes each response by its place, while its arrays are borrowed.

    Raises:
        GradmeshError: The first failure; calls still under way are given up.
    """
    pending: list[Pending] = []
    responses: list[Any] = []
    try:
        for channel, request in calls:
            pending.append(channel.start(method, request, deadline))
        for place, call in enumerate(pending):
            if read is None:
                responses.append(call.result())
                continue
            response = call.borrow()
            read(place, response)
            call.release()
            responses.append(response)
    finally:
        for call in pending[len(responses) :]:
            call.cancel()
    return responses
