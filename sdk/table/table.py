"""One embedding table on the parameter servers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import coalesce, unique_inverse
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.method import Body
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import pack
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.mesh.servers import ParameterServers
from gradmesh.sdk.table.lookup import read_rows
from gradmesh.sdk.table.routing import check_grads, check_ids, route
from gradmesh.sdk.table.wire import EXACTLY, Wire
from gradmesh.sdk.transport.call import Empty
from gradmesh.sdk.transport.channel import Writer
from gradmesh.sdk.transport.deadline import Deadline


@final
class Table:
    """A handle to a table; made by `Mesh.table`.

    Args:
        spec: What the table is.
        servers: Who holds its rows.
        next_push: Returns (worker, incarnation, sequence) of the next push.
        timeout_s: Default deadline of a call.
        wire: Precision of rows and gradients on the wire.

    Raises:
        InvalidRequest: Rows that are not float32 have no other precision on the wire.

    Attributes:
        name: Name of the table.
        dim: Elements in a row.
        dtype: Type of the rows.
    """

    def __init__(
        self,
        spec: table_pb2.TableSpec,
        servers: ParameterServers,
        next_push: Callable[[], tuple[str, int, int]],
        timeout_s: float,
        wire: Wire = EXACTLY,
    ) -> None:
        self.spec = spec
        self.servers = servers
        self._next_push = next_push
        self.timeout_s = timeout_s
        # Read at every call; protobuf's fields cost more than attributes.
        self.name: str = spec.name
        self.names = (self.name,)
        self.dim: int = spec.dim
        self.dtype: np.dtype[Any] = numpy_dtype(spec.dtype)
        self._rows: int = spec.rows
        self.wire = wire
        if wire != EXACTLY and self.dtype != np.float32:
            raise InvalidRequest(
                f"table {self.name!r} holds {self.dtype}; only float32 rows can travel otherwise",
                table=self.name,
            )

    def lookup(self, ids: object, *, timeout_s: float | None = None) -> Array:
        """Return rows, outside any context.

        Args:
            ids: Integers of any shape.
            timeout_s: Deadline; the mesh's by default.

        Returns:
            The rows, [*ids.shape, dim].

        Raises:
            IdOutOfRange: An id is no row of the table.
        """
        wanted = check_ids(ids, self.name, self._rows)
        rows = read_rows(self, wanted.reshape(-1), self._deadline(timeout_s))
        return rows.reshape(*wanted.shape, self.dim)

    def push(self, ids: object, grads: Array, *, timeout_s: float | None = None) -> None:
        """Send gradients that the servers apply at once, each exactly once.

        Args:
            ids: Integers of any shape; repeated ones add up.
            grads: Gradients, [*ids.shape, dim].
            timeout_s: Deadline; the mesh's by default.

        Raises:
            IdOutOfRange: An id is no row of the table.
            InvalidRequest: Another shape, or a gradient that is no number.
        """
        wanted = check_ids(ids, self.name, self._rows)
        grads = check_grads(grads, (*wanted.shape, self.dim), self.dtype, self.name)
        unique, inverse = unique_inverse(wanted)
        sums = _Sums(inverse, grads.reshape(-1, self.dim), unique.size, self.name)
        sender = self._next_push()
        deadline = self._deadline(timeout_s)
        # The number stays the same when servers have moved, so whoever has it takes it once.
        self.servers.with_map(
            lambda shards: self.servers.call_each(
                shards, "Push", self._pushes(unique, sums, sender, shards), deadline
            ),
            deadline,
        )

    def _pushes(
        self, ids: Ids, sums: "_Sums", sender: tuple[str, int, int], shards: ShardMap
    ) -> dict[int, Body | Writer]:
        worker, incarnation, sequence = sender
        message = pb.PushRequest(
            worker=worker,
            incarnation=incarnation,
            sequence=sequence,
            shard_epoch=shards.epoch,
            tables=[self.name],
            wire_grads=self.wire.grads,
        )
        grads = self.wire.grads
        if len(shards.names) == 1:
            if not ids.size:
                return {}
            return {0: lambda empty: Frame(message, [ids, *pack(sums.write(empty), grads)])}
        plan = route([ids], shards)
        parts = plan.split(sums.write(np.empty))
        return {
            shard: Frame(message, [pieces[0].ids, *pack(parts[shard][0], grads)])
            for shard, pieces in plan.pieces.items()
        }

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline.after(self.timeout_s if timeout_s is None else timeout_s)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, rows={self.spec.rows}, dim={self.dim})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Gradients of equal ids, to be added up.

    Args:
        inverse: For each gradient, which sum it belongs to.
        grads: [n, dim].
        count: How many sums there are.
        table: Name of the table, for messages.
    """

    inverse: NDArray[np.int64]
    grads: Array
    count: int
    table: str

    def write(self, empty: Empty) -> Array:
        """Return the sums, [count, dim], in memory that `empty` gives where there is work to do.

        Raises:
            InvalidRequest: A sum is beyond the numbers of its type.
        """
        if self.count == len(self.grads):
            return self.grads
        shape = (self.count, self.grads.shape[1])
        out = coalesce(self.inverse, self.grads, self.count, empty(shape, self.grads.dtype))
        return check_grads(out, shape, self.grads.dtype, self.table)
