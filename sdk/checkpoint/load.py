"""Restoring tables from a checkpoint, on any number of servers."""

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.checkpoint.manifest import Manifest, corrupt
from gradmesh.sdk.checkpoint.snapshot import Block, ProgressCounter
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.transport.deadline import Deadline

_CALL_BYTES = 4 << 20


def check_specs(
    chain: Sequence[tuple[Path, Manifest]], existing: Sequence[table_pb2.TableSpec]
) -> list[table_pb2.TableSpec]:
    """Return the tables of a checkpoint.

    Raises:
        CheckpointCorrupt: A table of that name exists with another specification.
    """
    folder, manifest = chain[-1]
    specs = [table.table for table in manifest.tables]
    held = {spec.name: spec for spec in existing}
    for spec in specs:
        if held.get(spec.name, spec) != spec:
            raise corrupt(
                folder,
                f"its table {spec.name!r} is not the mesh's: {_difference(spec, held[spec.name])}",
            )
    return specs


def _difference(theirs: table_pb2.TableSpec, ours: table_pb2.TableSpec) -> str:
    fields = [f.name for f in theirs.DESCRIPTOR.fields]
    other = [name for name in fields if getattr(theirs, name) != getattr(ours, name)]
    return "; ".join(f"{n} {getattr(theirs, n)} there, {getattr(ours, n)} here" for n in other)


def load(
    servers: ParameterServers,
    chain: Sequence[tuple[Path, Manifest]],
    counter: ProgressCounter,
    call_s: float,
) -> None:
    """Load verified rows into existing tables, which are closed for lookups until the end."""
    _, manifest = chain[-1]
    names = [table.table.name for table in manifest.tables]
    sender = Sender.open(servers, uuid.uuid4().hex, counter.deadline, call_s)
    sender.ask_all("BeginRestore", pb.BeginRestoreRequest(restore=sender.restore, tables=names))
    for number, name in enumerate(names):
        for block in blocks_of(chain, number):
            sender.send(name, block)
            if "ids" in block:
                counter.add(block["ids"].size)
    # Outside a run each server counts its own steps; the highest count is restored.
    steps = [max(table.steps) for table in manifest.tables]
    sender.ask_all("EndRestore", pb.EndRestoreRequest(restore=sender.restore, steps=steps))


def reset(servers: ParameterServers, tables: Sequence[str], deadline: Deadline) -> None:
    """Reset tables to their initial rows: an empty restore, which replaces an unfinished one."""
    sender = Sender.open(servers, uuid.uuid4().hex, deadline, deadline.remaining_s())
    sender.ask_all("BeginRestore", pb.BeginRestoreRequest(restore=sender.restore, tables=tables))
    steps = [0] * len(tables)
    sender.ask_all("EndRestore", pb.EndRestoreRequest(restore=sender.restore, steps=steps))


def blocks_of(chain: Sequence[tuple[Path, Manifest]], table: int) -> Iterator[Block]:
    """Yield the blocks of a table of a chain, oldest first; the data of buckets comes last."""
    forgets = bool(chain[-1][1].tables[table].spec.get("eviction", {}).get("name"))
    alive = _Alive(_files(chain[-1:], table)) if forgets and len(chain) > 1 else None
    for arrays in _files(chain, table):
        rows = {n: a for n, a in arrays.items() if n in ("ids", "rows", "marks") or "." in n}
        if rows:
            yield rows if alive is None else alive.pick(rows)
    for arrays in _files(chain[-1:], table):
        if "buckets" in arrays:
            names = ("buckets", "clocks", "counters", "uses")
            yield {n: a for n, a in arrays.items() if n in names}


def _files(chain: Sequence[tuple[Path, Manifest]], table: int) -> Iterator[Block]:
    for folder, manifest in chain:
        for file in manifest.tables[table].files:
            yield map_tensors(file.inside(folder))


@final
class _Alive:
    """The rows that exist at the end of a chain, with their marks."""

    def __init__(self, files: Iterator[Block]) -> None:
        none: list[tuple[Ids, NDArray[np.uint32]]] = [
            (np.empty(0, np.int64), np.empty(0, np.uint32))
        ]
        found = [(a["alive"], a["alive_marks"]) for a in files if "alive" in a] or none
        ids = np.concatenate([ids for ids, _ in found])
        order = np.argsort(ids)
        self._ids = ids[order]
        self._marks = np.concatenate([marks for _, marks in found])[order]

    def pick(self, rows: Block) -> Block:
        """Return the rows that are alive, with their newest marks."""
        if not self._ids.size:
            return {name: array[:0] for name, array in rows.items()}
        positions = np.searchsorted(self._ids, rows["ids"]).clip(max=self._ids.size - 1)
        held = self._ids[positions] == rows["ids"]
        picked = {name: array[held] for name, array in rows.items()}
        return picked | {"marks": self._marks[positions[held]]}


@final
class Sender:
    """Sends rows to the servers that hold them; made by `open`.

    Args:
        servers: All servers.
        shards: The shard map.
        restore: Name of the restore; empty outside one.
        deadline: Of the whole.
        call_s: Longest time of one call.
    """

    def __init__(
        self,
        servers: ParameterServers,
        shards: ShardMap,
        restore: str,
        deadline: Deadline,
        call_s: float,
    ) -> None:
        self.restore = restore
        self._servers = servers
        self._shards = shards
        self._deadline = deadline
        self._call_s = call_s

    @classmethod
    def open(
        cls, servers: ParameterServers, restore: str, deadline: Deadline, call_s: float
    ) -> Self:
        """Fetch the shard map; return a sender that routes by it."""
        shards = servers.refresh(Deadline.after(min(call_s, deadline.remaining_s())))
        return cls(servers, shards, restore, deadline, call_s)

    def _limit(self) -> Deadline:
        return Deadline.after(min(self._call_s, self._deadline.remaining_s()))

    def ask_all(self, name: str, request: pb.BeginRestoreRequest | pb.EndRestoreRequest) -> None:
        """Call every server with one request."""
        requests = dict.fromkeys(range(len(self._shards.names)), request)
        self._servers.call_each(self._shards, name, requests, self._limit())

    def send(self, table: str, block: Block) -> None:
        """Send rows, or the data of buckets, to the servers that hold them."""
        if "buckets" in block:
            owners = self._shards.bucket_shards[block["buckets"]]
        else:
            owners = self._shards.shards_of(block["ids"])
        size = sum(array.nbytes for array in block.values())
        most = max(1, owners.size * _CALL_BYTES // max(1, size))
        for begin in range(0, owners.size, most):
            part = slice(begin, begin + most)
            requests = {
                shard: self._request(table, block, part, owners[part] == shard)
                for shard in np.unique(owners[part]).tolist()
            }
            self._servers.call_each(self._shards, "LoadRows", requests, self._limit())

    def _request(
        self, table: str, block: Block, part: slice, mine: NDArray[np.bool_]
    ) -> Frame[pb.LoadRowsRequest]:
        message = pb.LoadRowsRequest(
            restore=self.restore,
            table=table,
            shard_epoch=self._shards.epoch,
            names=list(block),
        )
        return Frame(message, [array[part][mine] for array in block.values()])
