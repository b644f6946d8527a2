"""Rows that are fetched ahead of their step, and brought up to date when it comes.

The servers answer at once with rows as they are, and remember which. When the step comes, they
wait until all earlier ones are applied and send only the rows that changed since, whoever changed
them: what a layer sees is the same with and without prefetching, to the bit.
"""

import contextlib
from typing import final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    ContextReleased,
    GradmeshError,
    LookupNotFound,
    StaleShardMap,
    Unreachable,
)
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import pack, unpack
from gradmesh.sdk.mesh.servers import METHODS, Calls, call_all
from gradmesh.sdk.table.lookup import Lookup, PendingLookup, Purpose
from gradmesh.sdk.table.routing import Part
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline

# Servers that cannot be told forget by themselves, in time: no reason to wait for long.
_RELEASE_S = 1.0

# The rows have to be looked up anew: a server moved, or lost what it remembered.
_GONE = (ContextReleased, LookupNotFound, StaleShardMap, Unreachable)


@final
class Prefetched:
    """Rows on their way ahead of their step; made and sent at once.

    Args:
        tables: Whose rows.
        wanted: Which.
        context: An id of its own, under which the servers remember them.
        mark: A step of the run they are for; None outside a run.
        deadline: Of the request.
    """

    def __init__(
        self,
        tables: TableSet,
        wanted: WantedIds,
        context: context_pb2.ContextId,
        mark: context_pb2.StepMark | None,
        deadline: Deadline,
    ) -> None:
        self.wanted = wanted
        self._tables = tables
        self._context = context
        purpose = Purpose(mark, context, lambda count: 1, ahead=True)
        self._pending = PendingLookup(tables, wanted, deadline, purpose)

    def refresh(self, purpose: Purpose, deadline: Deadline) -> Lookup | None:
        """Return the rows as of a step, or None if they have to be looked up anew.

        Args:
            purpose: What for; its context sends the gradients.
            deadline: Of the call.

        Raises:
            GradmeshError: A server refused, or earlier steps did not complete in time.
        """
        try:
            ahead = self._pending.finish()
        except GradmeshError:
            return None
        first = purpose.reserve(ahead.route.depth)
        try:
            changed = self._bring_up_to_date(ahead, purpose, first, deadline)
        except _GONE:
            return None
        self._tables.servers.metrics.add(
            prefetch_hits=1, prefetched_rows=sum(ahead.route.totals), refreshed_rows=changed
        )
        return ahead._replace(first=first)

    def _bring_up_to_date(
        self, ahead: Lookup, purpose: Purpose, first: int, deadline: Deadline
    ) -> int:
        """Replace the rows that changed; return how many did."""
        servers, parts = self._tables.servers, ahead.route.parts
        calls = [
            (
                servers.channel(ahead.shards, part.shard),
                self._request(part, ahead.first, purpose, first, ahead.shards.epoch),
            )
            for part in parts
        ]
        changed = 0
        replies = Calls(METHODS["Refresh"], calls, deadline).responses()
        for part, reply in zip(parts, replies, strict=True):
            arrays = zip(part.pieces, reply.arrays[::2], reply.arrays[1::2], strict=True)
            for piece, places, rows in arrays:
                # Rounded as those that were read ahead; what comes anew comes exactly.
                fitting = unpack(pack(rows, ahead.wire.rows), ahead.wire.rows)
                ahead.rows[piece.group][piece.begin + places] = fitting
                changed += places.size
        return changed

    def _request(
        self, part: Part, ahead_first: int, purpose: Purpose, first: int, epoch: int
    ) -> pb.RefreshRequest:
        return pb.RefreshRequest(
            ahead_context=self._context,
            ahead_lookup=ahead_first + part.number,
            context=purpose.context,
            lookup=first + part.number,
            mark=purpose.mark,
            shard_epoch=epoch,
        )

    def discard(self) -> None:
        """Let the servers forget the rows."""
        self._tables.servers.metrics.add(prefetch_misses=1)
        with contextlib.suppress(GradmeshError):
            ahead = self._pending.finish()
            servers, request = self._tables.servers, owner_pb2.ReleaseContextRequest
            calls = [
                (servers.channel(ahead.shards, shard), request(context=self._context))
                for shard in ahead.route.shards
            ]
            call_all(METHODS["ReleaseContext"], calls, Deadline.after(_RELEASE_S))
