"""Reading rows of several tables from all servers at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import StaleShardMap, Unreachable
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import unpack_all
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.mesh.servers import METHODS, Calls
from gradmesh.sdk.table.routing import Part, Route, route
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.table.wire import Wire
from gradmesh.sdk.transport.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a lookup is for, inside a context.

    Args:
        mark: The step of a run; None outside a run.
        context: The context that sends gradients; None when none will follow.
        reserve: Gives the context's next numbers, so many; the first is returned.
        ahead: Whether rows are wanted at once, to be brought up to date later.
    """

    mark: context_pb2.StepMark | None
    context: context_pb2.ContextId | None = None
    reserve: Callable[[int], int] = lambda count: 0
    ahead: bool = False


_READING = Purpose(None)


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Rows that were read.

    Args:
        shards: The map they were routed with.
        route: Where each came from.
        rows: For each group of tables [total, dim], each id once; ours to change.
        first: Number of the first message to each server within the context.
        wire: Precision of rows and gradients on the wire.
    """

    shards: ShardMap
    route: Route
    rows: list[Array]
    first: int
    wire: Wire


@final
class PendingLookup:
    """A lookup under way; made and sent at once.

    Args:
        tables: Whose rows.
        wanted: Which.
        deadline: Of all attempts together.
        purpose: What for.
    """

    def __init__(
        self,
        tables: TableSet,
        wanted: WantedIds,
        deadline: Deadline,
        purpose: Purpose | None = None,
    ) -> None:
        self._tables = tables
        self._wanted = wanted
        self._deadline = deadline
        self._purpose = purpose or _READING
        self._sent: tuple[Lookup, Calls] | None = None
        if self._purpose.mark is None:
            # Whoever reads outside of a run sees the steps that this process has taken in it.
            tables.servers.settle(deadline)
        try:
            self._sent = self._send(tables.servers.shard_map(deadline))
        except (StaleShardMap, Unreachable):
            if tables.servers.closed:
                raise
            # `finish` tries again, with a newer map.

    def _send(self, shards: ShardMap) -> tuple[Lookup, Calls]:
        servers = self._tables.servers
        plan = route(self._tables, self._wanted, shards, servers.max_frame_bytes)
        first = self._purpose.reserve(plan.depth)
        rows = [
            np.empty((total, dim), dtype)
            for total, (dim, dtype) in zip(plan.totals, self._tables.groups, strict=True)
        ]
        asked = self._asked(plan)
        calls = [
            (servers.channel(shards, part.shard), self._request(part, shards.epoch, first, asked))
            for part in plan.parts
        ]
        lookup = Lookup(shards, plan, rows, first, self._tables.wire)
        return lookup, Calls(METHODS["Lookup"], calls, self._deadline)

    def _asked(self, plan: Route) -> list[float]:
        """Return for each table how many ids were wanted for each that travels."""
        wanted = np.diff(self._wanted.starts)
        distinct = np.zeros_like(wanted)
        for part in plan.parts:
            for piece in part.pieces:
                distinct[piece.table] += piece.ids.size
        shares: list[float] = (wanted / np.maximum(distinct, 1)).tolist()
        return shares

    def _request(
        self, part: Part, epoch: int, first: int, asked: list[float]
    ) -> Frame[pb.LookupRequest]:
        names, purpose = self._tables.names, self._purpose
        message = pb.LookupRequest(
            shard_epoch=epoch,
            tables=[names[piece.table] for piece in part.pieces],
            mark=purpose.mark,
            context=purpose.context,
            lookup=first + part.number,
            ahead=purpose.ahead,
            wire_rows=self._tables.wire.rows,
            asked=[round(asked[piece.table] * piece.ids.size) for piece in part.pieces],
        )
        return Frame(message, [piece.ids for piece in part.pieces])

    def finish(self) -> Lookup:
        """Wait for the rows; a server that moved is found again, until the deadline.

        Raises:
            GradmeshError: A server refused, or could not be reached in time.
        """

        def read(shards: ShardMap) -> Lookup:
            sent, self._sent = self._sent or self._send(shards), None
            lookup, calls = sent
            for part, reply in zip(lookup.route.parts, calls.borrowed(), strict=True):
                arrays = unpack_all(reply.arrays, lookup.wire.rows)
                for piece, rows in zip(part.pieces, arrays, strict=True):
                    lookup.rows[piece.group][piece.place] = rows
            return lookup

        found = self._tables.servers.with_map(read, self._deadline)
        self._tables.servers.metrics.add(
            lookups=1,
            lookup_ids=self._wanted.ids.size,
            lookup_rows=sum(found.route.totals),
            lookup_bytes=sum(rows.nbytes for rows in found.rows),
        )
        return found

    def cancel(self) -> None:
        """Give it up."""
        if self._sent is not None:
            self._sent[1].cancel()


def look_up(
    tables: TableSet, wanted: WantedIds, deadline: Deadline, purpose: Purpose | None = None
) -> Lookup:
    """Read rows of tables, all servers in one round.

    A server that moved is found again through the coordinator, until the deadline.
    """
    return PendingLookup(tables, wanted, deadline, purpose).finish()
