"""One embedding table on the parameter servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.engine.kernels import coalesce, unique_inverse
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.checkpoint.snapshot import Progress
from gradmesh.sdk.checkpoint.transfer import export_rows, import_rows
from gradmesh.sdk.mesh.servers import ParameterServers
from gradmesh.sdk.table.lookup import look_up
from gradmesh.sdk.table.routing import check_grads, check_ids, route
from gradmesh.sdk.table.schedule import counts_steps
from gradmesh.sdk.transport.deadline import Deadline


@final
class Table:
    """A handle to a table; made by `Mesh.table`.

    Args:
        spec: What the table is.
        servers: Who holds its rows.
        next_push: Returns (worker, incarnation, sequence) of the next push.
        timeout_s: Default deadline of a call.
    """

    def __init__(
        self,
        spec: table_pb2.TableSpec,
        servers: ParameterServers,
        next_push: Callable[[], tuple[str, int, int]],
        timeout_s: float,
    ) -> None:
        self.spec = spec
        self.servers = servers
        self._next_push = next_push
        self.timeout_s = timeout_s

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.spec.name

    @property
    def dim(self) -> int:
        """Elements in a row."""
        return self.spec.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the rows."""
        return numpy_dtype(self.spec.dtype)

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
        wanted = check_ids(ids, self.name, self.spec.rows)
        found = look_up([self], [wanted.reshape(-1)], self._deadline(timeout_s))
        return found.rows[found.route.inverse[0]].reshape(*wanted.shape, self.dim)

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
        wanted = check_ids(ids, self.name, self.spec.rows)
        grads = check_grads(grads, (*wanted.shape, self.dim), self.spec)
        unique, inverse = unique_inverse(wanted)
        total = coalesce(inverse, grads.reshape(-1, self.dim), unique.size)
        total = check_grads(total, total.shape, self.spec)
        sender = self._next_push()
        deadline = self._deadline(timeout_s)
        # The number stays the same when servers have moved, so whoever has it takes it once.
        self.servers.with_map(
            lambda shards: self.servers.call_each(
                shards, "Push", self._pushes(unique, total, sender, shards), deadline
            ),
            deadline,
        )

    def _pushes(
        self, ids: Ids, grads: Array, sender: tuple[str, int, int], shards: ShardMap
    ) -> dict[int, Frame[pb.PushRequest]]:
        plan = route([ids], shards)
        parts = plan.split(grads)
        worker, incarnation, sequence = sender
        message = pb.PushRequest(
            worker=worker,
            incarnation=incarnation,
            sequence=sequence,
            shard_epoch=shards.epoch,
            tables=[self.name],
        )
        frames = {
            shard: Frame(message, [pieces[0].ids, parts[shard][0]])
            for shard, pieces in plan.pieces.items()
        }
        if counts_steps(self.spec):
            # Whoever holds none of the ids must count the step, too.
            nothing = Frame(message, [ids[:0], grads[:0]])
            for shard in range(len(shards.names)):
                frames.setdefault(shard, nothing)
        return frames

    def export(
        self,
        path: str | Path,
        *,
        progress: Progress | None = None,
        timeout_s: float = 3600.0,
    ) -> int:
        """Write all rows that were ever used to a file of ids and rows, sorted by id.

        Args:
            path: Ends in .safetensors, .npz or .parquet; a file of that name is replaced.
            progress: Called with rows done and rows in all.
            timeout_s: Deadline of the whole.

        Returns:
            How many rows there are.

        Raises:
            InvalidRequest: The name says no format, or its package is missing.
        """
        return export_rows(
            self.servers,
            self.spec,
            Path(path),
            progress=progress,
            timeout_s=timeout_s,
            call_s=self.timeout_s,
        )

    def import_rows(
        self,
        path: str | Path,
        *,
        progress: Progress | None = None,
        timeout_s: float = 3600.0,
    ) -> int:
        """Set rows from a file as `export` writes it; their optimizer state begins anew.

        Returns:
            How many rows there were.

        Raises:
            InvalidRequest: The file does not fit the table; nothing is changed.
            IdOutOfRange: An id is no row of the table; nothing is changed.
        """
        return import_rows(
            self.servers,
            self.spec,
            Path(path),
            progress=progress,
            timeout_s=timeout_s,
            call_s=self.timeout_s,
        )

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline.after(self.timeout_s if timeout_s is None else timeout_s)

    def __repr__(self) -> str:
        rows = self.spec.rows or "any"
        return f"Table({self.name!r}, rows={rows}, dim={self.dim})"
