"""Reading rows of several tables from all servers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.table.routing import Route, route
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.table.table import Table


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
    """

    shards: ShardMap
    route: Route
    rows: Array


def look_up(
    tables: Sequence["Table"],
    ids: Sequence[Ids],
    deadline: Deadline,
    purpose: Purpose | None = None,
) -> Lookup:
    """Read rows of tables of the same dim and type.

    A server that moved is found again through the coordinator, until the deadline.
    """

    def read(shards: ShardMap) -> Lookup:
        plan = route(ids, shards)
        requests = {
            shard: _request(tables, plan, shard, shards.epoch, purpose) for shard in plan.pieces
        }
        replies = tables[0].servers.call_each(shards, "Lookup", requests, deadline)
        rows = np.empty((plan.total, tables[0].dim), tables[0].dtype)
        plan.merge({shard: reply.arrays for shard, reply in replies.items()}, rows)
        return Lookup(shards, plan, rows)

    return tables[0].servers.with_map(read, deadline)


def _request(
    tables: Sequence["Table"], plan: Route, shard: int, epoch: int, purpose: Purpose | None
) -> Frame[pb.LookupRequest]:
    pieces = plan.pieces[shard]
    message = pb.LookupRequest(
        shard_epoch=epoch,
        tables=[tables[piece.table].name for piece in pieces],
        asked=[plan.asked(piece) for piece in pieces],
    )
    if purpose is not None and purpose.mark is not None:
        message.mark.CopyFrom(purpose.mark)
    if purpose is not None and purpose.context is not None:
        message.context.CopyFrom(purpose.context)
        message.lookup = purpose.number
    return Frame(message, [piece.ids for piece in pieces])
