"""Rows that are prefetched before their step, and refreshed when it comes.

The servers return the current rows at once, and record which were sent. When the previous step is
applied, a thread fetches the rows that changed, while the caller still updates its dense
parameters. When the step starts, the servers send the rows that have changed since then: a layer
returns the same values with and without prefetching, bit for bit.
"""

import contextlib
from collections.abc import Callable
from typing import final

import numpy as np

from gradmesh.engine.kernels import copy_in, copy_marked
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    ContextReleased,
    InvalidFrame,
    LookupNotFound,
    MeshError,
    StaleShardMap,
    Unreachable,
)
from gradmesh.protos.frame import Array
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import pack, unpack
from gradmesh.sdk.cluster.servers import METHODS, Calls, call_all
from gradmesh.sdk.future import Future
from gradmesh.sdk.table.lookup import FetchedRows, LookupRequest, look_up
from gradmesh.sdk.table.routing import ShardMessage
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline

# Servers that cannot be reached release the context when its lease ends: do not wait for long.
_RELEASE_S = 1.0

_OTHER_ROWS = "the rows received are not those prefetched; are both ends of one version?"

# The rows must be looked up again: a server moved, or lost its record of the prefetch.
_LOST = (ContextReleased, LookupNotFound, StaleShardMap, Unreachable)


@final
class Prefetch:
    """Rows that are fetched before their step.

    A thread looks them up and gathers them while the caller computes.

    Args:
        tables: Whose rows.
        wanted: Which ids.
        context: A context id of its own, under which the servers record the rows.
        gather: Adds to the rows what the layer returns, for tables of one dim and type.
    """

    def __init__(
        self,
        tables: TableSet,
        wanted: WantedIds,
        context: context_pb2.ContextId,
        gather: Callable[[FetchedRows], FetchedRows] = lambda fetched: fetched,
    ) -> None:
        self.wanted = wanted
        self._tables = tables
        self._context = context
        self._gather = gather
        # The servers' change counts when they were last asked, by message.
        self._counts: list[int] = []
        self._changed = 0
        self._fetched: Future[FetchedRows]
        self._early: Future[None] | None = None

    def start(self, step: context_pb2.StepMark | None, deadline: Deadline) -> None:
        """Have a thread look the rows up.

        Args:
            step: A step of the run they are for; None outside a run.
            deadline: Of the request.
        """
        request = LookupRequest(step, self._context, lambda count: 1, prefetch=True)
        self._fetched = self._tables.servers.begin(
            lambda: self._gather(look_up(self._tables, self.wanted, deadline, request))
        )

    def refresh_early(self, step: context_pb2.StepMark | None, deadline: Deadline) -> None:
        """Have a thread refresh the rows, because the step before theirs was applied.

        Args:
            step: Their step; None outside a run.
            deadline: Of the call.
        """
        if self._early is None:
            self._early = self._tables.servers.begin(lambda: self._refresh_early(step, deadline))

    def _refresh_early(self, step: context_pb2.StepMark | None, deadline: Deadline) -> None:
        fetched = self._fetched.result()
        requests = [
            pb.RefreshRequest(
                ahead_context=self._context,
                ahead_lookup=fetched.first + message.number,
                mark=step,
                shard_epoch=fetched.shards.epoch,
                peek=True,
            )
            for message in fetched.route.messages
        ]
        self._counts = self._refresh(fetched, requests, deadline)

    def refresh(self, request: LookupRequest, deadline: Deadline) -> FetchedRows | None:
        """Return the rows as of a step, or None if they must be looked up again.

        Args:
            request: The step, and the context that sends the gradients.
            deadline: Of the call.

        Raises:
            MeshError: A server refused, or earlier steps did not complete in time.
        """
        try:
            fetched = self._fetched.result()  # which has a deadline of its own
        except MeshError:
            return None
        # After other failures of the early refresh this one gets all changes.
        if self._early is not None and isinstance(self._early.exception(), _LOST):
            return None
        messages = fetched.route.messages
        first = request.reserve(fetched.route.depth)
        requests = [
            pb.RefreshRequest(
                ahead_context=self._context,
                ahead_lookup=fetched.first + message.number,
                context=request.context,
                lookup=first + message.number,
                mark=request.step,
                shard_epoch=fetched.shards.epoch,
                since=since,
            )
            for message, since in zip(messages, self._counts or [0] * len(messages), strict=True)
        ]
        try:
            self._refresh(fetched, requests, deadline)
        except _LOST:
            return None
        self._tables.metrics.add(
            prefetch_hits=1,
            prefetched_rows=sum(fetched.route.totals),
            refreshed_rows=self._changed,
        )
        return fetched._replace(first=first)

    def _refresh(
        self, fetched: FetchedRows, requests: list[pb.RefreshRequest], deadline: Deadline
    ) -> list[int]:
        """Replace the rows that changed; return the servers' change counts."""
        servers, messages = self._tables.servers, fetched.route.messages
        calls = [
            (servers.channel(fetched.shards, message.shard), request)
            for message, request in zip(messages, requests, strict=True)
        ]
        # Rows of the first group; rows that are gathered have no other.
        is_changed = None if fetched.output is None else np.zeros(fetched.route.totals[0], np.bool_)
        changed, counts = 0, []
        replies = Calls(METHODS["Refresh"], calls, deadline).borrowed()
        for message, request, reply in zip(messages, requests, replies, strict=True):
            counts.append(reply.message.count)
            if request.since and not reply.arrays:
                continue  # nothing changed
            spans = _spans(message)
            if len(reply.arrays) != 2 * len(spans):
                raise InvalidFrame(_OTHER_ROWS)
            arrays = zip(spans.items(), reply.arrays[::2], reply.arrays[1::2], strict=True)
            for (group, span), positions, rows in arrays:
                if positions.size:
                    _replace(fetched.rows[group][span], positions, rows, fetched.wire.rows)
                    changed += positions.size
                    if is_changed is not None:
                        is_changed[span][positions] = True
        self._changed += changed
        if changed and fetched.output is not None:
            copy_marked(fetched.rows[0], fetched.positions, is_changed, fetched.output)
        return counts

    def discard(self) -> None:
        """Release the rows on the servers."""
        self._tables.metrics.add(prefetch_misses=1)
        with contextlib.suppress(MeshError):
            fetched = self._fetched.result()
            servers, request = self._tables.servers, owner_pb2.ReleaseContextRequest
            calls = [
                (servers.channel(fetched.shards, shard), request(context=self._context))
                for shard in fetched.route.shards
            ]
            call_all(METHODS["ReleaseContext"], calls, Deadline.after(_RELEASE_S))


def _spans(message: ShardMessage) -> dict[int, slice]:
    """Return where the rows of a message are in the matrix of each group, one after the other."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for some in message.slices:
        begins.setdefault(some.group, some.begin)
        ends[some.group] = some.begin + some.ids.size
    return {group: slice(begin, ends[group]) for group, begin in begins.items()}


def _replace(rows: Array, positions: Array, new: Array, wire: int) -> None:
    """Replace prefetched rows by those that were refreshed.

    Raises:
        InvalidFrame: They do not fit.
    """
    # Refreshed rows are sent exactly; round them as the prefetched ones were.
    fitting = unpack(pack(new, wire), wire)
    fits = fitting.shape == (positions.size, rows.shape[1]) and fitting.dtype == rows.dtype
    if (
        not fits
        or positions.dtype != np.int64
        or positions.min() < 0
        or positions.max() >= len(rows)
    ):
        raise InvalidFrame(_OTHER_ROWS)
    copy_in(rows, positions, fitting)
