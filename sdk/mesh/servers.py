"""The parameter servers as a client sees them: the shard map and a channel to each server."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from gradmesh.protos.method import Body, Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.mesh.coordinator import Coordinator
from gradmesh.sdk.transport.channel import Channel, Pending
from gradmesh.sdk.transport.deadline import Deadline

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
        self._lock = threading.Lock()  # guards _map and _channels
        self._map: ShardMap | None = None
        self._channels: dict[tuple[str, str], Channel] = {}
        self._closed_bytes = 0

    def shard_map(self, deadline: Deadline) -> ShardMap:
        """Return the map in use; fetched at first."""
        with self._lock:
            if self._map is not None:
                return self._map
        return self.refresh(deadline)

    def refresh(self, deadline: Deadline) -> ShardMap:
        """Fetch the map anew, waiting until all servers are there."""
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
        """Return the channel to one server of a map."""
        key = (shards.addresses[shard], shards.names[shard])
        with self._lock:
            if key not in self._channels:
                self._channels[key] = self._connect(*key)
            return self._channels[key]

    def call_each(
        self, shards: ShardMap, name: str, requests: Mapping[int, Body], deadline: Deadline
    ) -> dict[int, Any]:
        """Call several servers at once; return the responses by shard.

        Raises:
            GradmeshError: The first failure; calls still under way are given up.
        """
        method = METHODS[name]
        pending: dict[int, Pending] = {}
        responses: dict[int, Any] = {}
        try:
            for shard, request in requests.items():
                pending[shard] = self.channel(shards, shard).start(method, request, deadline)
            for shard, call in pending.items():
                responses[shard] = call.result()
        finally:
            for shard, call in pending.items():
                if shard not in responses:
                    call.cancel()
        return responses

    def bytes_moved(self) -> int:
        """Return the message bytes exchanged with all servers so far."""
        with self._lock:
            return self._closed_bytes + sum(c.bytes_moved for c in self._channels.values())

    def close(self) -> None:
        """Close all channels; may be called twice."""
        with self._lock:
            for channel in self._channels.values():
                channel.close()
