"""The handover of buckets in a reshard: rows, run state, step counts and dedupe table."""

from collections.abc import Callable, Iterator, Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import ShardMap, buckets_of
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.log.record import LoggedRun, MarksStaged
from gradmesh.services.parameter_server.snapshots import joined, slices
from gradmesh.services.parameter_server.store import TableStore
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.table.table_snapshot import Block

_CALL_S = 20.0
_PAGE_BYTES = 1 << 20


@final
class Handover:
    """Sends the buckets that leave this server to their new owners.

    Args:
        number: Number of the reshard.
        name: Name of this server.
        now: The current map.
        then: The next map.
        dial: Makes a channel from (address, name).
        keep: Stages rows of a table that stay here.
    """

    def __init__(
        self,
        number: int,
        name: str,
        now: ShardMap,
        then: ShardMap,
        dial: Callable[[str, str], Channel],
        keep: Callable[[str, Block], object],
    ) -> None:
        self._keep = keep
        self._number = number
        self._name = name
        self._then = then
        self._dial = dial
        self.held: NDArray[np.bool_] = now.owned_by(name)
        """For each bucket, whether it is here now."""
        self.leaving: NDArray[np.bool_] = self.held & ~then.owned_by(name)
        """For each bucket, whether it migrates from here to another server."""
        self._own = list(then.names).index(name) if name in then.names else -1
        self._targets = sorted(set(then.bucket_shards[self.leaving].tolist()))
        self._channels: dict[int, Channel] = {}

    def send(self, table: str, block: Mapping[str, Array]) -> None:
        """Send rows, or state per bucket, to the servers of the next map, this one included.

        Raises:
            MeshError: A server refused, or could not be reached.
        """
        if not block:
            return
        buckets = block["buckets"] if "buckets" in block else buckets_of(block["ids"])
        owners = self._then.bucket_shards[buckets]
        for shard in (self._own, *self._targets):
            chosen = owners == shard
            if not chosen.any():
                continue
            part = {name: array[chosen] for name, array in block.items()}
            if shard == self._own:
                self._keep(table, part)
            else:
                self._stage(shard, table, part)

    def _stage(self, shard: int, table: str, block: Block) -> None:
        for part in slices(block, _PAGE_BYTES):
            request = pb.StageRowsRequest(reshard=self._number, table=table, names=list(part))
            self._call(shard, "StageRows", Frame(request, list(part.values())))

    def send_marks(self, store: TableStore) -> None:
        """Send run state, step counts and dedupe table to all servers that received rows.

        Raises:
            MeshError: A server refused, or could not be reached.
        """
        request = self._marks(store)
        for shard in self._targets:
            self._call(shard, "StageMarks", request)

    def _marks(self, store: TableStore) -> pb.StageMarksRequest:
        run = store.steps.run
        request = pb.StageMarksRequest(
            reshard=self._number,
            source=self._name,
            run=pb.HeldRun(
                origin=run.origin,
                generation=run.generation,
                world_size=run.world_size,
                steps=run.applied_steps,
                staleness=run.staleness,
                own_steps=run.own_steps,
            ),
            tables=[pb.FrozenTable(name=table.name, steps=table.steps) for table in store.tables()],
        )
        for worker, incarnation, floor, numbers in store.writer.pushes.dump():
            request.pushes.add(worker=worker, incarnation=incarnation, floor=floor, numbers=numbers)
        return request

    def _call(
        self, shard: int, method: str, request: Frame[pb.StageRowsRequest] | pb.StageMarksRequest
    ) -> None:
        if shard not in self._channels:
            self._channels[shard] = self._dial(self._then.addresses[shard], self._then.names[shard])
        self._channels[shard].call(METHODS[method], request, Deadline.after(_CALL_S))

    def close(self) -> None:
        """Close the channels; may be called twice."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


def marks_of(request: pb.StageMarksRequest) -> MarksStaged:
    """Return the log record of a message."""
    run = request.run
    return MarksStaged(
        request.source,
        LoggedRun(
            run.origin,
            run.generation,
            run.world_size,
            run.steps,
            run.staleness if run.HasField("staleness") else None,
            list(run.own_steps),
        ),
        {table.name: table.steps for table in request.tables},
        [(m.worker, m.incarnation, m.floor, list(m.numbers)) for m in request.pushes],
    )


def whole_tables(
    store: TableStore, wanted: NDArray[np.bool_], *, counting: bool
) -> Iterator[tuple[str, Mapping[str, Array], float]]:
    """Yield the rows of wanted buckets, table by table, with the share that is done.

    Args:
        store: The store of the tables.
        wanted: For each bucket, whether its rows are wanted.
        counting: Whether to read the tables that count uses, or the others.
    """
    tables = [table for table in store.tables() if table.counts_uses == counting]
    total = sum(table.changes.migration.pieces for table in tables)
    done = 0
    for table in tables:
        migration = table.changes.migration
        for begin, block in pages(table, wanted):
            yield table.name, block, (done + begin) / total
        done += migration.pieces
        yield table.name, migration.memory(wanted), done / total


def pages(table: TableShard, wanted: NDArray[np.bool_]) -> Iterator[tuple[int, Block]]:
    """Yield the rows of wanted buckets, small pieces joined, with the number of pieces read."""
    held: list[Block] = []
    size = 0
    migration = table.changes.migration
    for number in range(migration.pieces):
        block = migration.piece(number, wanted)
        if block:
            held.append(block)
            size += sum(array.nbytes for array in block.values())
        if size >= _PAGE_BYTES:
            yield number + 1, joined(held)
            held, size = [], 0
    if held:
        yield migration.pieces, joined(held)
