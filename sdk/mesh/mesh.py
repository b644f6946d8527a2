"""The mesh as users see it: tables and checkpoints."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from gradmesh.engine.optim import Optimizer, lr_scheduler
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.sdk.checkpoint.load import check_specs, load, reset
from gradmesh.sdk.checkpoint.manifest import Manifest, chain_of
from gradmesh.sdk.checkpoint.save import save
from gradmesh.sdk.checkpoint.snapshot import Progress, ProgressCounter
from gradmesh.sdk.checkpoint.transfer import export_rows, import_rows
from gradmesh.sdk.cluster.connection import Connection
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.table.spec import make_spec
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.wire import Precision, Wire, wire_of
from gradmesh.sdk.transport.deadline import Deadline, check_timeout


@final
class Mesh:
    """A connection to the mesh, made by `connect`; a context manager.

    Args:
        connection: To coordinator and parameter servers, open.
        table_metrics: Counts lookups and pushes.
        on_close: Called by `close`.

    Attributes:
        name: Name of this process.
        connection: Not for users: what the other packages of gradmesh build on.
    """

    def __init__(
        self,
        connection: Connection,
        table_metrics: TableMetrics,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.connection = connection
        self.name = connection.name
        self.table_metrics = table_metrics
        self._on_close = on_close

    def table(
        self,
        name: str,
        *,
        rows: int | None = None,
        dim: int,
        optimizer: Optimizer,
        schedule: lr_scheduler.LRScheduler | None = None,
        initializer: Initializer | None = None,
        seed: int = 0,
        dtype: Any = np.float32,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        max_bytes: int = 0,
        bad_gradients: BadGradients | None = None,
        hot_bytes: int = 0,
        wire_rows: Precision | None = None,
        wire_grads: Precision | None = None,
    ) -> Table:
        """Create a table, or open it if an equal one exists.

        Args:
            name: Unique in the mesh.
            rows: Ids are 0 … rows-1; None makes a hash table, whose ids are any int64 and whose
                rows are made on first use.
            dim: Elements in a row.
            optimizer: How gradients change rows, e.g. `gm.optim.SGD(lr=0.05)`.
            schedule: How the learning rate follows the table's steps, e.g.
                `lr_scheduler.LinearLR(gm.optim.SGD(lr=0.05), total_iters=100)`.
            initializer: How initial rows are drawn; uniform in ±1/sqrt(dim) by default.
            seed: Of the initial rows.
            dtype: Of the rows: float32, float16, bfloat16 or float64.
            admission: Which new ids of a hash table get a row; all by default.
            eviction: Which rows of a hash table go first; none by default.
            max_bytes: Memory of a hash table on all servers together; 0 for any.
            bad_gradients: The rule for NaN and infinite gradients; reject by default.
            hot_bytes: Memory for hot rows on all servers together, the others are on the servers'
                disks; 0 keeps all in memory.
            wire_rows: Precision of the rows that this handle reads, which are rounded to it; exact
                by default.
            wire_grads: Precision of the gradients that it sends; exact by default.

        Raises:
            TableConflict: The name belongs to a table with another specification.
            InvalidRequest: An argument is wrong.
        """
        spec = make_spec(
            name,
            rows,
            dim,
            optimizer,
            schedule=schedule,
            initializer=initializer,
            seed=seed,
            dtype=dtype,
            admission=admission,
            eviction=eviction,
            max_bytes=max_bytes,
            bad_gradients=bad_gradients,
            hot_bytes=hot_bytes,
        )
        wire = wire_of(wire_rows, wire_grads)
        self.connection.coordinator.create_table(spec, self.connection.deadline())
        return self._open(spec, wire)

    def open_table(
        self,
        name: str,
        *,
        wire_rows: Precision | None = None,
        wire_grads: Precision | None = None,
    ) -> Table:
        """Open an existing table.

        Args:
            name: Of the table.
            wire_rows: Precision of rows on the wire, as in `table`.
            wire_grads: Precision of gradients on the wire, as in `table`.

        Raises:
            TableNotFound: There is none of that name.
        """
        wire = wire_of(wire_rows, wire_grads)
        return self._open(self._describe(name), wire)

    def _describe(self, name: str) -> table_pb2.TableSpec:
        connection = self.connection
        return connection.coordinator.describe_table(name, connection.deadline())

    def _list(self) -> list[table_pb2.TableSpec]:
        return self.connection.coordinator.list_tables(self.connection.deadline())

    def _open(self, spec: table_pb2.TableSpec, wire: Wire) -> Table:
        connection = self.connection
        return Table(
            spec,
            connection.servers,
            connection.next_push,
            connection.timeouts.call_s,
            wire,
            metrics=self.table_metrics,
        )

    def checkpoint(
        self,
        path: str | Path,
        *,
        tables: Sequence[str] | None = None,
        base: str | Path | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Manifest:
        """Write tables with their optimizer state to a folder, while training goes on.

        In a run it is a consistent cut: all servers after the same step. Outside one, each server
        is read as it is when asked, so no process should push meanwhile.

        Args:
            path: The folder; it appears when it is complete.
            tables: Names; all tables by default.
            base: The newest checkpoint before; only rows changed since then are written.
            progress: Called with rows done and rows in all.
            timeout_s: Deadline of the whole; `Timeouts.transfer_s` by default.

        Raises:
            InvalidRequest: The folder is in use.
            CheckpointCorrupt: The base is no complete checkpoint.
            BaseLost: A server does not know what changed since the base; make a full checkpoint.
            SnapshotLost: A server restarted, or a run began; try again.
        """
        specs = self._list() if tables is None else [self._describe(name) for name in tables]
        return save(
            self.connection.servers,
            specs,
            Path(path),
            base=None if base is None else Path(base),
            progress=progress,
            timeout_s=self._transfer_s(timeout_s),
            call_s=self.connection.timeouts.call_s,
        )

    def restore(
        self, path: str | Path, *, progress: Progress | None = None, timeout_s: float | None = None
    ) -> Manifest:
        """Restore tables from a checkpoint, on any number of servers.

        Everything is verified first. Then the tables are emptied and filled, and closed for lookups
        until all rows are there; missing tables are created.

        Raises:
            CheckpointCorrupt: It is incomplete, damaged or of other tables; nothing is changed.
            StoreFull: The rows do not fit; the tables stay closed until another restore.
        """
        chain = chain_of(Path(path).absolute())
        specs = check_specs(chain, self._list())
        for spec in specs:
            self.connection.coordinator.create_table(spec, self.connection.deadline())
        rows = sum(manifest.rows for _, manifest in chain)
        load(
            self.connection.servers,
            chain,
            ProgressCounter(rows, progress, Deadline.after(self._transfer_s(timeout_s))),
            call_s=self.connection.timeouts.call_s,
        )
        return chain[-1][1]

    def export_table(
        self,
        table: Table,
        path: str | Path,
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Write all rows of a table that were ever used to a file, sorted by id.

        Args:
            table: The table.
            path: Ends in .safetensors, .npz or .parquet; a file of that name is replaced.
            progress: Called with rows done and rows in all.
            timeout_s: Deadline of the whole; `Timeouts.transfer_s` by default.

        Returns:
            Number of rows.

        Raises:
            InvalidRequest: The name has no known format, or its package is missing.
        """
        return export_rows(
            self.connection.servers,
            table.spec,
            Path(path),
            progress=progress,
            timeout_s=self._transfer_s(timeout_s),
            call_s=self.connection.timeouts.call_s,
        )

    def import_table(
        self,
        table: Table,
        path: str | Path,
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Set rows of a table from a file as `export_table` writes it.

        The optimizer state of these rows starts from zero; other rows stay.

        Returns:
            Number of rows.

        Raises:
            InvalidRequest: The file does not fit the table; nothing is changed.
            IdOutOfRange: An id is not a row of the table; nothing is changed.
        """
        return import_rows(
            self.connection.servers,
            table.spec,
            Path(path),
            progress=progress,
            timeout_s=self._transfer_s(timeout_s),
            call_s=self.connection.timeouts.call_s,
        )

    def reset_table(self, table: Table, *, timeout_s: float | None = None) -> None:
        """Reset all rows of a table and its optimizer state to their initial values.

        This also opens a table that an unfinished restore left closed.
        """
        reset(self.connection.servers, [table.name], self.connection.deadline(timeout_s))

    def _transfer_s(self, timeout_s: float | None) -> float:
        return check_timeout(timeout_s, self.connection.timeouts.transfer_s)

    def close(self) -> None:
        """Leave the mesh; may be called twice."""
        self.connection.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Mesh({self.name!r} at {self.connection.coordinator.address!r})"
