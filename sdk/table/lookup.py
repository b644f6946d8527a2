"""Reading rows of several tables from all servers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradmesh.engine.kernels import unique_inverse
from gradmesh.protos.common.v1 import array_pb2, context_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import EXACT
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.mesh.servers import METHODS
from gradmesh.sdk.table.routing import Route, route
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.table.table import Table

LOOKUP = METHODS["Lookup"]


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a lookup is for, inside a context.

    Args:
        mark: The step of a run; None outside a run.
        context: The context that sends gradients; None when none will follow.
        number: Of this lookup within the context.
    """

    mark: context_pb2.StepMark | None
    context: context_pb2.ContextId | None = None
    number: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Rows that were read.

    Args:
        shards: The map they were routed with.
        route: Where each came from.
        rows: [total, dim], each id once; ours to change.
        wire_grads: Precision of their gradients on the wire.
    """

    shards: ShardMap
    route: Route
    rows: Array
    wire_grads: array_pb2.ElementType = EXACT


def look_up(
    tables: Sequence["Table"],
    ids: Sequence[Ids],
    deadline: Deadline,
    purpose: Purpose | None = None,
) -> Lookup:
    """Read rows of tables of the same dim and type.

    A server that moved is found again through the coordinator, until the deadline.

    Raises:
        InvalidRequest: The tables' rows or gradients are to travel in different precisions.
    """
    wire = tables[0].wire
    if any(table.wire != wire for table in tables):
        raise InvalidRequest("tables that are read together must have the same wire precision")

    def read(shards: ShardMap) -> Lookup:
        plan = route(ids, shards)
        requests = {
            shard: _request(tables, plan, shard, shards.epoch, purpose) for shard in plan.pieces
        }
        rows = np.empty((plan.total, tables[0].dim), tables[0].dtype)
        tables[0].servers.call_each(
            shards, "Lookup", requests, deadline, plan.reader(rows, wire.rows)
        )
        return Lookup(shards, plan, rows, wire.grads)

    return tables[0].servers.with_map(read, deadline)


def read_rows(table: "Table", ids: Ids, deadline: Deadline) -> Array:
    """Return the rows of flat ids of one table, outside any context, in the order of the ids."""

    def read(shards: ShardMap) -> Array:
        if len(shards.names) == 1 and ids.size and table.wire.rows == EXACT:
            return _read_whole(table, ids, shards, deadline)
        plan = route([ids], shards)
        requests = {s: _request([table], plan, s, shards.epoch, None) for s in plan.pieces}
        rows = np.empty((plan.total, table.dim), table.dtype)
        reader = plan.reader(rows, table.wire.rows)
        table.servers.call_each(shards, "Lookup", requests, deadline, reader)
        return rows.take(plan.inverse[0], axis=0)

    return table.servers.with_map(read, deadline)


def _read_whole(table: "Table", ids: Ids, shards: ShardMap, deadline: Deadline) -> Array:
    """Read rows that all live on one server: each goes to its place in a single copy."""
    unique, inverse = unique_inverse(ids)
    message = pb.LookupRequest(shard_epoch=shards.epoch, tables=table.names)
    channel = table.servers.channel(shards, 0)
    call = channel.start(LOOKUP, Frame(message, [unique]), deadline)
    rows: Array = call.borrow().arrays[0]
    out = rows.copy() if unique.size == ids.size else rows.take(inverse, axis=0, mode="clip")
    call.release()
    return out


def _request(
    tables: Sequence["Table"], plan: Route, shard: int, epoch: int, purpose: Purpose | None
) -> Frame[pb.LookupRequest]:
    pieces = plan.pieces[shard]
    message = pb.LookupRequest(
        shard_epoch=epoch,
        tables=[tables[piece.table].name for piece in pieces],
        wire_rows=tables[0].wire.rows,
    )
    if purpose is not None and purpose.mark is not None:
        message.mark.CopyFrom(purpose.mark)
    if purpose is not None and purpose.context is not None:
        message.context.CopyFrom(purpose.context)
        message.lookup = purpose.number
    return Frame(message, [piece.ids for piece in pieces])
