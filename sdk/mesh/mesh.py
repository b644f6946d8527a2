"""A process's connection to the mesh: the object that users hold."""

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from gradmesh.engine.optim import Optimizer, lr_scheduler
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.coordinator.v1 import (
    rendezvous_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import MeshError, NotMember
from gradmesh.sdk.checkpoint.load import check_specs, load, reset
from gradmesh.sdk.checkpoint.manifest import Manifest, chain_of
from gradmesh.sdk.checkpoint.save import save
from gradmesh.sdk.checkpoint.snapshot import Progress, ProgressCounter
from gradmesh.sdk.checkpoint.transfer import export_rows, import_rows
from gradmesh.sdk.cluster import steps
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.cluster.lease import Lease
from gradmesh.sdk.cluster.membership import KeyStore, Membership
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.cluster.steps import RunState
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.table.spec import make_spec
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.wire import Precision, Wire, wire_of
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

# A process that leaves after an error may have lost a server: do not wait for long.
_LEAVE_COMMIT_S = 2.0


@final
class Mesh:
    """A live connection to the mesh; made by `connect`, a context manager.

    Attributes:
        name: Name of this process.
        incarnation: Distinguishes it from a former process of the same name.
        timeout_s: Default deadline of every call.
        servers: The parameter servers.
        table_metrics: Counts lookups and pushes.
    """

    def __init__(
        self,
        channel: Channel,
        coordinator: Coordinator,
        lease: Lease,
        servers: ParameterServers,
        table_metrics: TableMetrics,
        timeout_s: float,
    ) -> None:
        self._channel = channel
        self._lease = lease
        self.watch_contexts = lease.watch
        self._contexts = itertools.count(1)
        self.coordinator = coordinator
        self.servers = servers
        self.table_metrics = table_metrics
        self.name = lease.member.name
        self.incarnation = lease.member.incarnation
        self.timeout_s = timeout_s
        self._generation = 0
        self._sequence = itertools.count(1)

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
        self.coordinator.create_table(spec, self.deadline())
        return self._open(spec, wire)

    def open_table(
        self,
        name: str,
        *,
        wire_rows: Precision | None = None,
        wire_grads: Precision | None = None,
    ) -> Table:
        """Open a table that exists.

        Args:
            name: Of the table.
            wire_rows: Precision of rows on the wire, as in `table`.
            wire_grads: Precision of gradients on the wire, as in `table`.

        Raises:
            TableNotFound: There is none of that name.
        """
        wire = wire_of(wire_rows, wire_grads)
        return self._open(self.coordinator.describe_table(name, self.deadline()), wire)

    def _open(self, spec: table_pb2.TableSpec, wire: Wire) -> Table:
        return Table(
            spec, self.servers, self._next_push, self.timeout_s, wire, metrics=self.table_metrics
        )

    def _next_push(self) -> tuple[str, int, int]:
        return self.name, self.incarnation, next(self._sequence)

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """Return the deadline of a call that begins now."""
        return Deadline.after(self.timeout_s if timeout_s is None else timeout_s)

    def new_context_id(self) -> context_pb2.ContextId:
        """Return an id that no context had before."""
        return context_pb2.ContextId(
            worker=self.name, incarnation=self.incarnation, counter=next(self._contexts)
        )

    @property
    def generation(self) -> int:
        """The trainers' current generation, as of the last heartbeat."""
        return self._lease.generation

    @property
    def checkpoint_request(self) -> int:
        """Number of the newest request for a checkpoint, as of the last heartbeat."""
        return self._lease.checkpoint_request

    @property
    def reshard(self) -> int:
        """Number of the reshard under way, as of the last heartbeat; 0 for none."""
        return self._lease.reshard

    def renew(self, deadline: Deadline) -> None:
        """Send a heartbeat now, and take over what has changed.

        Raises:
            NameTaken: Another process took the name of this one.
        """
        self._lease.renew(deadline)

    def join_trainers(self, timeout_s: float, job: str = "") -> Membership:
        """Wait for a rank in a new generation.

        Args:
            timeout_s: For how long.
            job: Name of the job, if it has one.

        Raises:
            DeadlineExceeded: Trainers are missing; the message says how many.
            JobDone: The job has its result already.
        """
        deadline = Deadline.after(timeout_s)
        try:
            joined = self._join(deadline, job)
        except NotMember:
            # The coordinator restarted, and the lease thread has not registered again yet.
            self._lease.renew(deadline)
            joined = self._join(deadline, job)
        self._generation = joined.generation
        return Membership(joined.generation, joined.rank, joined.world_size)

    def _join(self, deadline: Deadline, job: str) -> rendezvous_pb2.JoinRoundResponse:
        return self.coordinator.join_round(
            self.name, self.incarnation, self._generation, deadline, job
        )

    def store(self, generation: int) -> KeyStore:
        """Return the store of values that the trainers of a generation publish to each other."""
        return KeyStore(self.coordinator, generation, self.timeout_s)

    def find_run(self, membership: Membership) -> RunState | None:
        """Return the step from which the servers can resume a run; None if they hold none.

        Raises:
            StaleGeneration: A newer generation began.
        """
        return steps.find_run(self.servers, membership, self.deadline())

    def start_run(
        self,
        membership: Membership,
        tables: Sequence[Table | str],
        *,
        state: RunState | None = None,
        staleness: int | None = None,
    ) -> RunState:
        """Start a run on all parameter servers, or resume one; called by rank 0 once a generation.

        Messages of older generations are refused from now on.

        Args:
            membership: The generation, and this trainer's rank in it.
            tables: The run's tables, or their names. A new run without a step resets them to their
                initial rows.
            state: Where to resume: the result of `find_run`, or with origin 0 the step of the
                checkpoint that was restored. None starts at the first step.
            staleness: Steps that a trainer may be ahead of the slowest one, each applying its own;
                None for a synchronous run.

        Returns:
            Where the run starts.

        Raises:
            RunLost: A server does not hold the run at that step.
            StaleGeneration: A newer generation began.
        """
        names = [table if isinstance(table, str) else table.name for table in tables]
        return steps.start_run(
            self.servers, membership, names, self.deadline(), state=state, staleness=staleness
        )

    def commit_step(self, timeout_s: float | None = None) -> None:
        """Have the newest step of this process applied on every server, e.g. to read its rows.

        Within a run the next step does that; the last one needs it.
        """
        steps.commit_step(self.servers, self.deadline(timeout_s))

    def checkpoint(
        self,
        path: str | Path,
        *,
        tables: Sequence[str] | None = None,
        base: str | Path | None = None,
        progress: Progress | None = None,
        timeout_s: float = 3600.0,
    ) -> Manifest:
        """Write tables with their optimizer state to a folder, while training goes on.

        In a run it is a consistent cut: all servers after the same step. Outside one, each server
        is read as it is when asked, so no process should push meanwhile.

        Args:
            path: The folder; it appears when it is complete.
            tables: Names; all tables by default.
            base: The newest checkpoint before; only rows changed since then are written.
            progress: Called with rows done and rows in all.
            timeout_s: Deadline of the whole.

        Raises:
            InvalidRequest: The folder is in use.
            CheckpointCorrupt: The base is no complete checkpoint.
            BaseLost: A server does not know what changed since the base; make a full checkpoint.
            SnapshotLost: A server restarted, or a run began; try again.
        """
        specs = self.coordinator.list_tables(self.deadline())
        if tables is not None:
            specs = [self.coordinator.describe_table(name, self.deadline()) for name in tables]
        return save(
            self.servers,
            specs,
            Path(path),
            base=None if base is None else Path(base),
            progress=progress,
            timeout_s=timeout_s,
            call_s=self.timeout_s,
        )

    def restore(
        self, path: str | Path, *, progress: Progress | None = None, timeout_s: float = 3600.0
    ) -> Manifest:
        """Put tables back to a checkpoint, on any number of servers.

        Everything is verified first. Then the tables are emptied and filled, and closed for lookups
        until all rows are there; missing tables are created.

        Raises:
            CheckpointCorrupt: It is incomplete, damaged or of other tables; nothing is changed.
            StoreFull: The rows do not fit; the tables stay closed until another restore.
        """
        chain = chain_of(Path(path).absolute())
        specs = check_specs(chain, self.coordinator.list_tables(self.deadline()))
        for spec in specs:
            self.coordinator.create_table(spec, self.deadline())
        rows = sum(manifest.rows for _, manifest in chain)
        load(
            self.servers,
            chain,
            ProgressCounter(rows, progress, Deadline.after(timeout_s)),
            call_s=self.timeout_s,
        )
        return chain[-1][1]

    def export_table(
        self,
        table: Table,
        path: str | Path,
        *,
        progress: Progress | None = None,
        timeout_s: float = 3600.0,
    ) -> int:
        """Write all rows of a table that were ever used to a file of ids and rows, sorted by id.

        Args:
            table: The table.
            path: Ends in .safetensors, .npz or .parquet; a file of that name is replaced.
            progress: Called with rows done and rows in all.
            timeout_s: Deadline of the whole.

        Returns:
            Number of rows.

        Raises:
            InvalidRequest: The name has no known format, or its package is missing.
        """
        return export_rows(
            self.servers,
            table.spec,
            Path(path),
            progress=progress,
            timeout_s=timeout_s,
            call_s=self.timeout_s,
        )

    def import_table(
        self,
        table: Table,
        path: str | Path,
        *,
        progress: Progress | None = None,
        timeout_s: float = 3600.0,
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
            self.servers,
            table.spec,
            Path(path),
            progress=progress,
            timeout_s=timeout_s,
            call_s=self.timeout_s,
        )

    def reset_table(self, table: Table, *, timeout_s: float | None = None) -> None:
        """Reset all rows of a table and its optimizer state to their initial values.

        This also opens a table that an unfinished restore left closed.
        """
        reset(self.servers, [table.name], self.deadline(timeout_s))

    def report(self, progress: status_pb2.Progress) -> None:
        """Report the progress of this trainer to the coordinator."""
        self.coordinator.report_progress(self.name, self.incarnation, progress, self.deadline())

    def report_result(
        self, membership: Membership, results: dict[str, float], job: str = ""
    ) -> None:
        """Report the results of a run to the coordinator, and that its job is done."""
        self.coordinator.report_result(membership.generation, results, self.deadline(), job)

    def close(self) -> None:
        """Leave the mesh; may be called twice."""
        with contextlib.suppress(MeshError):
            self.commit_step(_LEAVE_COMMIT_S)
        self._lease.close()
        self.servers.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Mesh({self.name!r} at {self.coordinator.address!r})"
