"""Rows that are fetched ahead of their step, and brought up to date when it comes.

The servers answer at once with rows as they are, and remember which. When the step comes, they
wait until all earlier ones are applied and send only the rows that changed since, whoever changed
them: what a layer sees is the same with and without prefetching, to the bit.
"""

import contextlib
from typing import final

import numpy as np

from gradmesh.engine.kernels import copy_in
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    ContextReleased,
    GradmeshError,
    InvalidFrame,
    LookupNotFound,
    StaleShardMap,
    Unreachable,
)
from gradmesh.protos.frame import Array
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import pack, unpack
from gradmesh.sdk.mesh.servers import METHODS, Calls, call_all
from gradmesh.sdk.table.lookup import Lookup, Purpose, look_up
from gradmesh.sdk.table.routing import Part
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline

# Servers that cannot be told forget by themselves, in time: no reason to wait for long.
_RELEASE_S = 1.0

_OTHER_ROWS = "the rows that came are not those read ahead; do both ends run the same?"

# The rows have to be looked up anew: a server moved, or lost what it remembered.
_GONE = (ContextReleased, LookupNotFound, StaleShardMap, Unreachable)


@final
class Prefetched:
    """Rows on their way ahead of their step.

    A thread asks for them and takes them in, while the caller's computes.

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
        self._ahead = tables.servers.begin(lambda: look_up(tables, wanted, deadline, purpose))

    def refresh(self, purpose: Purpose, deadline: Deadline) -> Lookup | None:
        """Return the rows as of a step, or None if they have to be looked up anew.

        Args:
            purpose: What for; its context sends the gradients.
            deadline: Of the call.

        Raises:
            GradmeshError: A server refused, or earlier steps did not complete in time.
        """
        try:
            ahead = self._ahead.result()  # which has a deadline of its own
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
        replies = Calls(METHODS["Refresh"], calls, deadline).borrowed()
        for part, reply in zip(parts, replies, strict=True):
            if len(reply.arrays) != 2 * len(part.pieces):
                raise InvalidFrame(_OTHER_ROWS)
            arrays = zip(part.pieces, reply.arrays[::2], reply.arrays[1::2], strict=True)
            for piece, places, rows in arrays:
                if places.size:
                    _replace(ahead.rows[piece.group][piece.place], places, rows, ahead.wire.rows)
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
            ahead = self._ahead.result()
            servers, request = self._tables.servers, owner_pb2.ReleaseContextRequest
            calls = [
                (servers.channel(ahead.shards, shard), request(context=self._context))
                for shard in ahead.route.shards
            ]
            call_all(METHODS["ReleaseContext"], calls, Deadline.after(_RELEASE_S))


def _replace(rows: Array, places: Array, new: Array, wire: int) -> None:
    """Put rows that came anew where those are that were read ahead.

    Raises:
        InvalidFrame: They do not fit.
    """
    # Rounded as those that were read ahead; what comes anew comes exactly.
    fitting = unpack(pack(new, wire), wire)
    fits = fitting.shape == (places.size, rows.shape[1]) and fitting.dtype == rows.dtype
    if not fits or places.dtype != np.int64 or places.min() < 0 or places.max() >= len(rows):
        raise InvalidFrame(_OTHER_ROWS)
    copy_in(rows, places, fitting)
