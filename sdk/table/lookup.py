"""Lookups: rows of several tables, read from all servers in parallel.

LookupRequest ─► start_lookup ─► LookupFuture ─► FetchedRows
step, context    routes, sends   waits, retries   distinct rows, and where each came from
"""

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
from gradmesh.sdk.table.routing import Route, ShardMessage, route
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.table.wire import Wire, asked_field
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """The parameters of a lookup inside a context, beside the ids.

    Args:
        step: The step of a run; None outside a run.
        context: The context that will send gradients; None if none will follow.
        reserve: Reserves message numbers of the context and returns the first.
        prefetch: Whether to return the rows as they are now; they are refreshed later.
    """

    step: context_pb2.StepMark | None
    context: context_pb2.ContextId | None = None
    reserve: Callable[[int], int] = lambda count: 0
    prefetch: bool = False


_READ = LookupRequest(None)


class FetchedRows(NamedTuple):
    """Rows that were looked up.

    Args:
        shards: The shard map they were routed with.
        route: Where each came from.
        rows: For each group of tables [total, dim], each id once; the caller may change them.
            Empty while the lookup is under way.
        first: Number of the first message to each server within the context.
        wire: Precision of rows and gradients on the wire.
        output: The rows as the layer returns them, [n, dim]; None until they are gathered.
        positions: Which of the distinct rows each row of `output` is, int64 [n].
    """

    shards: ShardMap
    route: Route
    rows: list[Array]
    first: int
    wire: Wire
    output: Array | None = None
    positions: Array | None = None


@final
class LookupFuture:
    """A lookup under way; made by `start_lookup`.

    Args:
        tables: Whose rows.
        wanted: Which ids.
        deadline: Of all attempts together.
        request: Its step and context.
    """

    __slots__ = ("_deadline", "_request", "_sent", "_tables", "_wanted")

    def __init__(
        self, tables: TableSet, wanted: WantedIds, deadline: Deadline, request: LookupRequest
    ) -> None:
        self._tables = tables
        self._wanted = wanted
        self._deadline = deadline
        self._request = request
        self._sent: tuple[FetchedRows, Calls] | None = None

    def _send(self, shards: ShardMap) -> tuple[FetchedRows, Calls]:
        tables = self._tables
        servers = tables.servers
        plan = route(tables, self._wanted, shards, servers.max_frame_bytes)
        request = self._request
        first = 0 if request is _READ else request.reserve(plan.depth)
        repeats = self._wanted.ids.size != plan.distinct.size
        ratios = self._repetition(plan) if repeats else []
        calls = [
            (
                servers.channel(shards, message.shard),
                Frame(
                    self._head(message, shards.epoch, first, ratios),
                    [some.ids for some in message.slices],
                ),
            )
            for message in plan.messages
        ]
        fetched = FetchedRows(shards, plan, [], first, tables.wire)
        return fetched, Calls(METHODS["Lookup"], calls, self._deadline)

    def _repetition(self, plan: Route) -> list[float]:
        """Return for each table how often an id was wanted on average."""
        distinct = [0] * len(self._tables.names)
        for message in plan.messages:
            for some in message.slices:
                distinct[some.table] += some.ids.size
        starts = self._wanted.starts.tolist()
        wanted = zip(starts[1:], starts[:-1], strict=True)
        return [
            (end - begin) / max(count, 1)
            for (end, begin), count in zip(wanted, distinct, strict=True)
        ]

    def _head(
        self, message: ShardMessage, epoch: int, first: int, ratios: list[float]
    ) -> Serialized:
        head = self._tables.heads.lookup(epoch, *[some.table for some in message.slices])
        request = self._request
        if request is _READ and not ratios:
            return head
        rest = b""
        if request is not _READ:
            rest = pb.LookupRequest(
                mark=request.step,
                context=request.context,
                lookup=first + message.number,
                ahead=request.prefetch,
            ).SerializeToString()
        if ratios:
            rest += asked_field([round(ratios[s.table] * s.ids.size) for s in message.slices])
        return Serialized(head.data + rest)

    def finish(self) -> FetchedRows:
        """Wait for the rows; retry with a newer shard map if a server moved.

        Raises:
            MeshError: A server refused, or could not be reached in time.
        """
        return self._finish(self._assemble)

    def gather(self) -> Array:
        """Wait for the rows as `finish` does; return the row of each wanted id, [n, dim].

        For tables of one dim and type. Rows that come in one message are copied once.
        """
        return self._finish(self._gather)

    def gather_columns(self, out: Array, at: int) -> None:
        """Wait for the rows as `finish` does; put those of each table into a column.

        For tables of one dim and type, with the same number of wanted ids each.

        Args:
            out: [n, columns, dim] of that type, C-contiguous.
            at: The column of the first table.
        """
        self._finish(lambda sent, calls: (None, self._gather_columns(sent, calls, out, at)))

    def _finish(self, read: Callable[[FetchedRows, Calls], tuple[T, int]]) -> T:
        def attempt(shards: ShardMap) -> tuple[T, int, FetchedRows]:
            sent, self._sent = self._sent or self._send(shards), None
            return (*read(*sent), sent[0])

        found, size, fetched = self._tables.servers.with_map(attempt, self._deadline)
        self._tables.metrics.count_lookup(self._wanted.ids.size, fetched.route.distinct.size, size)
        return found

    def _assemble(self, sent: FetchedRows, calls: Calls) -> tuple[FetchedRows, int]:
        """Return all distinct rows, and their size."""
        rows = [
            np.empty((total, dim), dtype)
            for total, (dim, dtype) in zip(sent.route.totals, self._tables.groups, strict=True)
        ]
        for message, reply in zip(sent.route.messages, calls.borrowed(), strict=True):
            arrays = self._rows_of(message, reply)
            for some, array in zip(message.slices, arrays, strict=True):
                rows[some.group][some.begin : some.begin + len(array)] = array
        return sent._replace(rows=rows), sum(matrix.nbytes for matrix in rows)

    def _gather(self, sent: FetchedRows, calls: Calls) -> tuple[Array, int]:
        """Return the row of each id, and the size of the distinct ones."""
        messages = sent.route.messages
        inverse = sent.route.inverse
        if len(messages) != 1 or len(messages[0].slices) != 1:
            fetched, size = self._assemble(sent, calls)
            return fetched.rows[0].take(inverse, 0, None, "clip"), size
        call = calls.only()
        (rows,) = self._rows_of(messages[0], call.borrow())
        # Where no id repeats, the rows come in the order of the ids. The positions are computed
        # here, so none lies outside.
        whole = len(rows) == inverse.size
        found = rows.copy() if whole else rows.take(inverse, 0, None, "clip")
        size = rows.nbytes
        call.release()
        return found, size

    def _gather_columns(self, sent: FetchedRows, calls: Calls, out: Array, at: int) -> int:
        """Put the rows of each id into `out`; return the size of the distinct ones."""
        messages, inverse = sent.route.messages, sent.route.inverse
        count = len(self._tables.names)
        columns = inverse.reshape(count, -1)
        if len(messages) != 1 or not columns.size:
            fetched, size = self._assemble(sent, calls)
            out[:, at : at + count] = fetched.rows[0].take(columns.T, 0, None, "clip")
            return size
        call = calls.only()
        arrays = self._rows_of(messages[0], call.borrow())
        gather_columns(arrays, [some.begin for some in messages[0].slices], columns, out, at)
        size = sum(rows.nbytes for rows in arrays)
        call.release()
        return size

    def _rows_of(self, message: ShardMessage, reply: Any) -> list[Array]:
        """Return the rows of a reply, table by table.

        Raises:
            InvalidFrame: They are not the rows that were asked for.
        """
        wire = self._tables.wire.rows
        arrays: list[Array] = reply.arrays if wire == EXACT else unpack_all(reply.arrays, wire)
        groups = self._tables.groups
        if len(arrays) == len(message.slices):
            for some, array in zip(message.slices, arrays, strict=True):
                dim, dtype = groups[some.group]
                if array.shape != (some.ids.size, dim) or array.dtype != dtype:
                    break
            else:
                return arrays
        raise InvalidFrame(
            "the rows received are not those requested; are both ends of one version?"
        )

    def cancel(self) -> None:
        """Cancel the calls under way."""
        if self._sent is not None:
            self._sent[1].cancel()


def start_lookup(
    tables: TableSet, wanted: WantedIds, deadline: Deadline, request: LookupRequest = _READ
) -> LookupFuture:
    """Send a lookup to all servers that hold any of the rows; return without waiting for them.

    Args:
        tables: Whose rows.
        wanted: Which ids.
        deadline: Of all attempts together.
        request: Its step and context; by default rows are read outside any context.

    Raises:
        IdOutOfRange: An id is not a row of its table.
    """
    servers = tables.servers
    future = LookupFuture(tables, wanted, deadline, request)
    if request.step is None and servers.prepared_step is not None:
        # A read outside the run must see the steps that this process has prepared in it.
        commit_step(servers, deadline)
    try:
        future._sent = future._send(servers.shard_map(deadline))
    except (StaleShardMap, Unreachable):
        if servers.closed:
            raise
        # `finish` tries again, with a newer map.
    return future


def look_up(
    tables: TableSet, wanted: WantedIds, deadline: Deadline, request: LookupRequest = _READ
) -> FetchedRows:
    """Read rows of tables, from all servers in one round; see `start_lookup`."""
    return start_lookup(tables, wanted, deadline, request).finish()
