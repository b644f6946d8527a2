"""What a parameter server knows from the coordinator: tables and the shard map."""

import threading
from typing import final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import ShardNotReady
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.transport.deadline import Deadline


@final
class Directory:
    """Asks the coordinator; `join` gives it the mesh once the server has an address."""

    def __init__(self) -> None:
        self._mesh: Mesh | None = None
        self._lock = threading.Lock()  # one refresh at a time, however many calls want it

    def join(self, mesh: Mesh) -> None:
        """Begin to answer."""
        self._mesh = mesh

    def describe(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Return a table's specification.

        Raises:
            TableNotFound: There is no such table.
        """
        return self._joined().coordinator.describe_table(name, deadline)

    def shard_map(self, epoch: int, deadline: Deadline) -> ShardMap:
        """Return the current shard map, fetched anew if a caller has seen a newer one."""
        servers = self._joined().servers
        with self._lock:
            held = servers.shard_map(deadline)
            return held if epoch <= held.epoch else servers.refresh(deadline)

    def _joined(self) -> Mesh:
        if self._mesh is None:
            raise ShardNotReady("this server has not joined the mesh yet")
        return self._mesh
