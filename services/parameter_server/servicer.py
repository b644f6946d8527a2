"""The parameter server's rpcs over its store."""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.errors import InvalidRequest, StaleShardMap
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.limits import check_count, check_name, check_steps, check_text
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import arrays_per_table, pack, unpack, unpack_all
from gradmesh.sdk.cluster.openers import OpenerCheck
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Call
from gradmesh.services.parameter_server.gate import Kind
from gradmesh.services.parameter_server.handover import marks_of
from gradmesh.services.parameter_server.metrics import table_report
from gradmesh.services.parameter_server.store import TableStore


@final
class ParameterServerServicer:
    """Serves a store.

    Args:
        store: The rows.
        check_generation: Raises unless the generation was formed: an invented number would fence
            all trainers out.
        openers: Checks that callers may work in a context.
    """

    def __init__(
        self,
        store: TableStore,
        check_generation: Callable[[int, Deadline], object] = lambda generation, deadline: None,
        openers: OpenerCheck | None = None,
    ) -> None:
        self._openers = openers or OpenerCheck()
        self._store = store
        self._check_generation = check_generation

    def start_run(self, request: pb.StartRunRequest, call: Call) -> pb.StartRunResponse:
        """Begin a run."""
        _check_tables(request.tables)
        check_steps(request.steps)
        self._check_generation(request.generation, call.deadline)
        self._store.start_run(
            request.generation,
            request.world_size,
            request.tables,
            call.deadline,
            origin=request.origin,
            steps=request.steps,
            keep_rows=request.keep_rows,
            staleness=request.staleness if request.HasField("staleness") else None,
        )
        return pb.StartRunResponse()

    def inspect_run(self, request: pb.InspectRunRequest, call: Call) -> pb.InspectRunResponse:
        """Return the progress of the run, after fencing older generations out."""
        self._check_generation(request.generation, call.deadline)
        run = self._store.steps.inspect(request.generation)
        return pb.InspectRunResponse(
            origin=run.origin,
            generation=run.generation,
            applied_steps=run.applied_steps,
            prepared_steps=run.prepared_steps,
        )

    def lookup(self, request: Frame[pb.LookupRequest], call: Call) -> Frame[pb.LookupResponse]:
        """Read rows."""
        message = request.message
        # Read several times below; fields of protobuf cost more than variables.
        tables = list(message.tables)
        wire = message.wire_rows
        _check_count(len(request.arrays), len(tables), "one array of ids per table")
        if call.caller.only_reads and (message.HasField("context") or message.HasField("mark")):
            raise call.caller.refuse("take part in contexts and steps")
        if message.HasField("context"):
            self._openers.check(call.caller, message.context, call.deadline)
        rows = self._store.lookup(
            tables,
            request.arrays,
            call.deadline,
            epoch=message.shard_epoch,
            context=message.context if message.HasField("context") else None,
            number=message.lookup,
            mark=message.mark if message.HasField("mark") else None,
            ahead=message.ahead,
            peek=call.caller.only_reads,
            empty=np.empty if wire else call.empty,
        )
        self._store.count_asked(tables, request.arrays, message.asked)
        if wire:
            rows = [array for part in rows for array in pack(part, wire)]
        return Frame(pb.LookupResponse(), rows)

    def refresh(self, request: pb.RefreshRequest, call: Call) -> Frame[pb.RefreshResponse]:
        """Return the rows of a prefetch that changed since."""
        refresher = self._store.refresher
        source = request.ahead_context, request.ahead_lookup, call.deadline
        mark = request.mark if request.HasField("mark") else None
        epoch, since = request.shard_epoch, request.since
        context = request.context if request.HasField("context") else None
        self._openers.check(call.caller, request.ahead_context, call.deadline)
        if context is not None:
            self._openers.check(call.caller, context, call.deadline)
        if request.peek:
            if context is not None:
                raise InvalidRequest("a peek does not move the lookup; leave the context out")
            rows, count = refresher.peek(
                *source, epoch=epoch, mark=mark, since=since, empty=call.empty
            )
        else:
            rows, count = refresher.refresh(
                *source,
                epoch=epoch,
                context=context,
                number=request.lookup,
                mark=mark,
                since=since,
                empty=call.empty,
            )
        return Frame(pb.RefreshResponse(count=count), rows)

    def backward(self, request: Frame[pb.BackwardRequest], call: Call) -> pb.BackwardResponse:
        """Store the gradients of a lookup in its context."""
        message = request.message
        self._openers.check(call.caller, message.context, call.deadline)
        grads = unpack_all(request.arrays, message.wire_grads)
        borrowed = call.borrowed and not message.wire_grads
        self._store.backward(message.context, message.lookup, grads, borrowed, message.pass_number)
        return pb.BackwardResponse()

    def apply(self, request: pb.ApplyRequest, call: Call) -> pb.ApplyResponse:
        """Apply a context's gradients."""
        self._openers.check(call.caller, request.context, call.deadline)
        mark = request.mark if request.HasField("mark") else None
        returned = request.returned if request.HasField("returned") else None
        check_count("failed passes", len(request.failed_passes), limits.MAX_IDS_AT_ONCE)
        steps = self._store.apply(
            request.context,
            mark,
            call.deadline,
            returned=returned,
            failed=set(request.failed_passes),
        )
        return pb.ApplyResponse(applied_steps=steps)

    def commit_step(self, request: pb.CommitStepRequest, call: Call) -> pb.CommitStepResponse:
        """Apply a step that all servers have prepared."""
        return pb.CommitStepResponse(applied_steps=self._store.steps.commit(request.mark))

    def push(self, request: Frame[pb.PushRequest], call: Call) -> pb.PushResponse:
        """Apply gradients at once."""
        message = request.message
        call.caller.check_acts_for(message.worker, message.incarnation)
        arrays, wire = request.arrays, message.wire_grads
        width = 1 + (arrays_per_table(wire) if wire else 1)
        _check_count(len(arrays), width * len(message.tables), "ids and gradients per table")
        if wire:
            pairs = [
                (arrays[at], unpack(arrays[at + 1 : at + width], wire))
                for at in range(0, len(arrays), width)
            ]
            arrays = [array for pair in pairs for array in pair]
        sender = (message.worker, message.incarnation, message.sequence)
        check_text("name of a worker", message.worker, limits.MAX_NAME_BYTES)
        try:
            applied = self._store.push(
                sender,
                message.tables,
                arrays,
                message.shard_epoch,
                call.deadline,
                call.borrowed and not wire,
            )
        except StaleShardMap:
            # Senders take it as proof that nothing was applied, and use a new sequence number.
            if not self._store.writer.pushes.has(sender):
                raise
            applied = False
        return pb.PushResponse(applied=applied)

    def inspect_table(self, request: pb.InspectTableRequest, call: Call) -> pb.InspectTableResponse:
        """Return the state of this server's shard of a table."""
        table = self._store.table(request.table, call.deadline)
        return table_report(table)

    def begin_snapshot(
        self, request: pb.BeginSnapshotRequest, call: Call
    ) -> pb.BeginSnapshotResponse:
        """Freeze tables."""
        step = request.step if request.HasField("step") else None
        if request.HasField("owner"):
            call.caller.check_acts_for(request.owner.name, request.owner.incarnation)
        _check_tables(request.tables)
        for name in (request.snapshot, request.base, request.owner.name):
            check_text("name of a snapshot or its owner", name, limits.MAX_NAME_BYTES)
        if request.shard_epoch:
            self._store.epochs.check(request.shard_epoch, call.deadline)
        return self._store.checkpointing.begin_snapshot(
            request.snapshot,
            request.tables,
            step,
            request.base,
            call.deadline,
            owner=(request.owner.name, request.owner.incarnation),
        )

    def read_snapshot(
        self, request: pb.ReadSnapshotRequest, call: Call
    ) -> Frame[pb.ReadSnapshotResponse]:
        """Read a page of a frozen table."""
        self._check_owner(request.snapshot, call)
        page, following = self._store.checkpointing.snapshots.read(
            request.snapshot, request.table, request.cursor, request.max_bytes
        )
        message = pb.ReadSnapshotResponse(next_cursor=following, names=list(page))
        return Frame(message, list(page.values()))

    def end_snapshot(self, request: pb.EndSnapshotRequest, call: Call) -> pb.EndSnapshotResponse:
        """Release a snapshot."""
        self._check_owner(request.snapshot, call)
        self._store.checkpointing.snapshots.end(request.snapshot, request.stored)
        return pb.EndSnapshotResponse()

    def _check_owner(self, snapshot: str, call: Call) -> None:
        """Check that the caller began a snapshot, if its owner is known.

        Raises:
            Forbidden: Another member began it.
        """
        owner = self._store.checkpointing.snapshots.owner_of(snapshot)
        if owner[0]:
            call.caller.check_acts_for(*owner)

    def begin_restore(self, request: pb.BeginRestoreRequest, call: Call) -> pb.BeginRestoreResponse:
        """Empty tables for a restore."""
        _check_tables(request.tables)
        check_text("name of a restore", request.restore, limits.MAX_NAME_BYTES)
        with self._store.gate.passing(Kind.CHANGES, call.deadline):
            self._store.checkpointing.begin_restore(request.restore, request.tables, call.deadline)
        return pb.BeginRestoreResponse()

    def load_rows(self, request: Frame[pb.LoadRowsRequest], call: Call) -> pb.LoadRowsResponse:
        """Set rows."""
        message = request.message
        _check_count(len(request.arrays), len(message.names), "one per name")
        _check_count(len(set(message.names)), len(message.names), "each name once")
        arrays = dict(zip(message.names, _own_arrays(request.arrays, call), strict=True))
        with self._store.gate.passing(Kind.CHANGES, call.deadline):
            self._store.checkpointing.load_rows(
                message.restore, message.table, message.shard_epoch, arrays, call.deadline
            )
        return pb.LoadRowsResponse()

    def end_restore(self, request: pb.EndRestoreRequest, call: Call) -> pb.EndRestoreResponse:
        """Open restored tables."""
        for steps in request.steps:
            check_steps(steps)
        with self._store.gate.passing(Kind.CHANGES, call.deadline):
            self._store.checkpointing.end_restore(request.restore, request.steps, call.deadline)
        return pb.EndRestoreResponse()

    def stage_rows(self, request: Frame[pb.StageRowsRequest], call: Call) -> pb.StageRowsResponse:
        """Stage rows of a reshard."""
        message = request.message
        _check_count(len(request.arrays), len(message.names), "one per name")
        arrays = dict(zip(message.names, _own_arrays(request.arrays, call), strict=True))
        self._store.resharding.stage_rows(message.reshard, message.table, arrays, call.deadline)
        return pb.StageRowsResponse()

    def stage_marks(self, request: pb.StageMarksRequest, call: Call) -> pb.StageMarksResponse:
        """Stage the run state, step counts and dedupe table of a reshard."""
        check_name("worker", request.source)
        for entry in request.pushes:
            check_text("name of a worker", entry.worker, limits.MAX_NAME_BYTES)
        self._store.resharding.stage_marks(request.reshard, marks_of(request), call.deadline)
        return pb.StageMarksResponse()


def _own_arrays(arrays: Sequence[Array], call: Call) -> Sequence[Array]:
    """Return arrays that only this process can change, so that rows and log get the same bytes."""
    return [array.copy() for array in arrays] if call.borrowed else arrays


def _check_tables(names: Sequence[str]) -> None:
    check_count("tables", len(names), limits.TABLES.total)
    if len(set(names)) != len(names):
        raise InvalidRequest("a table is named twice; name each table once")


def _check_count(got: int, want: int, what: str) -> None:
    if got != want:
        raise InvalidRequest(f"{got} arrays, {want} are expected: {what}", got=got, want=want)
