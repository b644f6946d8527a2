"""Reading rows of several tables from all servers at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from gradmesh.engine.kernels import gather_columns
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import InvalidFrame, StaleShardMap, Unreachable
from gradmesh.protos.frame import Array, Frame, Serialized
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import EXACT, unpack_all
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.cluster.servers import METHODS, Calls
from gradmesh.sdk.cluster.steps import commit_step
from gradmesh.sdk.table.heads import asked_field
from gradmesh.sdk.table.routing import Part, Route, route
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.table.wire import Wire
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")


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


class Lookup(NamedTuple):
    """Rows that were read.

    Args:
        shards: The map they were routed with.
        route: Where each came from.
        rows: For each group of tables [total, dim], each id once; ours to change. Empty until
            they are there.
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

    __slots__ = ("_deadline", "_purpose", "_sent", "_tables", "_wanted")

    def __init__(
        self,
        tables: TableSet,
        wanted: WantedIds,
        deadline: Deadline,
        purpose: Purpose = _READING,
    ) -> None:
        self._tables = tables
        self._wanted = wanted
        self._deadline = deadline
        self._purpose = purpose
        self._sent: tuple[Lookup, Calls] | None = None
        if purpose.mark is None and tables.servers.prepared_step is not None:
            # A read outside the run sees the steps that this process has prepared in it.
            commit_step(tables.servers, deadline)
        try:
            self._sent = self._send(tables.servers.shard_map(deadline))
        except (StaleShardMap, Unreachable):
            if tables.servers.closed:
                raise
            # `finish` tries again, with a newer map.

    def _send(self, shards: ShardMap) -> tuple[Lookup, Calls]:
        tables = self._tables
        servers = tables.servers
        plan = route(tables, self._wanted, shards, servers.max_frame_bytes)
        purpose = self._purpose
        first = 0 if purpose is _READING else purpose.reserve(plan.depth)
        repeats = self._wanted.ids.size != plan.distinct.size
        shares = self._shares(plan) if repeats else []
        calls = [
            (
                servers.channel(shards, part.shard),
                Frame(
                    self._head(part, shards.epoch, first, shares),
                    [piece.ids for piece in part.pieces],
                ),
            )
            for part in plan.parts
        ]
        lookup = Lookup(shards, plan, [], first, tables.wire)
        return lookup, Calls(METHODS["Lookup"], calls, self._deadline)

    def _shares(self, plan: Route) -> list[float]:
        """Return for each table how many ids were wanted for each that travels."""
        distinct = [0] * len(self._tables.names)
        for part in plan.parts:
            for piece in part.pieces:
                distinct[piece.table] += piece.ids.size
        starts = self._wanted.starts.tolist()
        wanted = zip(starts[1:], starts[:-1], strict=True)
        return [
            (end - begin) / max(count, 1)
            for (end, begin), count in zip(wanted, distinct, strict=True)
        ]

    def _head(self, part: Part, epoch: int, first: int, shares: list[float]) -> Serialized:
        head = self._tables.heads.lookup(epoch, *[piece.table for piece in part.pieces])
        purpose = self._purpose
        if purpose is _READING and not shares:
            return head
        rest = b""
        if purpose is not _READING:
            rest = pb.LookupRequest(
                mark=purpose.mark,
                context=purpose.context,
                lookup=first + part.number,
                ahead=purpose.ahead,
            ).SerializeToString()
        if shares:
            pieces = part.pieces
            rest += asked_field([round(shares[piece.table] * piece.ids.size) for piece in pieces])
        return Serialized(head.data + rest)

    def finish(self) -> Lookup:
        """Wait for the rows; a server that moved is found again, until the deadline.

        Raises:
            GradmeshError: A server refused, or could not be reached in time.
        """
        return self._finish(self._assemble)

    def gather(self) -> Array:
        """Wait for the rows as `finish` does; return that of each id wanted, [n, dim].

        For tables of one dim and type. What comes in one piece is copied once.
        """
        return self._finish(self._gather)

    def gather_columns(self, out: Array, at: int) -> None:
        """Wait for the rows as `finish` does; put them side by side.

        For tables of one dim and type, of each of which as many ids are wanted.

        Args:
            out: [n, columns, dim] of that type, C-contiguous.
            at: Which column the rows of the first table go to.
        """
        self._finish(lambda sent, calls: (None, self._gather_columns(sent, calls, out, at)))

    def _finish(self, read: Callable[[Lookup, Calls], tuple[T, int]]) -> T:
        servers = self._tables.servers

        def attempt(shards: ShardMap) -> tuple[T, int, Lookup]:
            sent, self._sent = self._sent or self._send(shards), None
            return (*read(*sent), sent[0])

        found, size, lookup = servers.with_map(attempt, self._deadline)
        self._tables.metrics.note_lookup(self._wanted.ids.size, lookup.route.distinct.size, size)
        return found

    def _assemble(self, sent: Lookup, calls: Calls) -> tuple[Lookup, int]:
        """Return all distinct rows, and their size."""
        rows = [
            np.empty((total, dim), dtype)
            for total, (dim, dtype) in zip(sent.route.totals, self._tables.groups, strict=True)
        ]
        for part, reply in zip(sent.route.parts, calls.borrowed(), strict=True):
            arrays = self._rows_of(part, reply)
            for piece, array in zip(part.pieces, arrays, strict=True):
                rows[piece.group][piece.begin : piece.begin + len(array)] = array
        return sent._replace(rows=rows), sum(matrix.nbytes for matrix in rows)

    def _gather(self, sent: Lookup, calls: Calls) -> tuple[Array, int]:
        """Return the row of each id, and the size of the distinct ones."""
        parts = sent.route.parts
        inverse = sent.route.inverse
        if len(parts) != 1 or len(parts[0].pieces) != 1:
            lookup, size = self._assemble(sent, calls)
            return lookup.rows[0].take(inverse, 0, None, "clip"), size
        call = calls.only()
        (rows,) = self._rows_of(parts[0], call.borrow())
        # Where no id comes twice they stand as they were asked for. The places are our own: none
        # lies outside.
        whole = len(rows) == inverse.size
        found = rows.copy() if whole else rows.take(inverse, 0, None, "clip")
        size = rows.nbytes
        call.release()
        return found, size

    def _gather_columns(self, sent: Lookup, calls: Calls, out: Array, at: int) -> int:
        """Put the rows of each id into out; return the size of the distinct ones."""
        parts, inverse = sent.route.parts, sent.route.inverse
        count = len(self._tables.names)
        columns = inverse.reshape(count, -1)
        if len(parts) != 1 or not columns.size:
            lookup, size = self._assemble(sent, calls)
            out[:, at : at + count] = lookup.rows[0].take(columns.T, 0, None, "clip")
            return size
        call = calls.only()
        arrays = self._rows_of(parts[0], call.borrow())
        gather_columns(arrays, [piece.begin for piece in parts[0].pieces], columns, out, at)
        size = sum(rows.nbytes for rows in arrays)
        call.release()
        return size

    def _rows_of(self, part: Part, reply: Any) -> list[Array]:
        """Return the rows of an answer, table by table.

        Raises:
            InvalidFrame: They are not what was asked for.
        """
        wire = self._tables.wire.rows
        arrays: list[Array] = reply.arrays if wire == EXACT else unpack_all(reply.arrays, wire)
        groups = self._tables.groups
        if len(arrays) == len(part.pieces):
            for piece, array in zip(part.pieces, arrays, strict=True):
                dim, dtype = groups[piece.group]
                if array.shape != (piece.ids.size, dim) or array.dtype != dtype:
                    break
            else:
                return arrays
        raise InvalidFrame("the rows that came are not those asked for; do both ends run the same?")

    def cancel(self) -> None:
        """Give it up."""
        if self._sent is not None:
            self._sent[1].cancel()


def look_up(
    tables: TableSet, wanted: WantedIds, deadline: Deadline, purpose: Purpose = _READING
) -> Lookup:
    """Read rows of tables, all servers in one round.

    A server that moved is found again through the coordinator, until the deadline.
    """
    return PendingLookup(tables, wanted, deadline, purpose).finish()
