"""Rows that are fetched ahead of their step, and brought up to date when it comes.

The servers answer at once with rows as they are, and remember which. As soon as the step before is
applied a thread has those sent that changed, while the caller's is still busy with its dense
parameters. When the step comes, the servers send what has changed since then, if anything,
whoever changed it: what a layer sees is the same with and without prefetching, to the bit.
"""

import contextlib
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np

from gradmesh.engine.kernels import copy_in, copy_marked
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
from gradmesh.sdk.cluster.servers import METHODS, Calls, call_all
from gradmesh.sdk.future import Future
from gradmesh.sdk.table.lookup import Lookup, Purpose, look_up
from gradmesh.sdk.table.routing import Part
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline

# Servers that cannot be told forget by themselves, in time: no reason to wait for long.
_RELEASE_S = 1.0

_OTHER_ROWS = "the rows that came are not those read ahead; do both ends run the same?"

# The rows have to be looked up anew: a server moved, or lost what it remembered.
_GONE = (ContextReleased, LookupNotFound, StaleShardMap, Unreachable)


class LaidOut(NamedTuple):
    """Rows as a layer returns them.

    Args:
        rows: [n, dim].
        places: Which of the distinct rows each is, int64 [n].
    """

    rows: Array
    places: Array


class Fetched(NamedTuple):
    """Rows that were looked up.

    Args:
        lookup: The rows, each once.
        laid_out: The same as the layer returns them, where that was done ahead.
    """

    lookup: Lookup
    laid_out: LaidOut | None = None


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
        lay_out: Makes of the rows what the layer returns, for tables of one dim and type.
    """

    def __init__(
        self,
        tables: TableSet,
        wanted: WantedIds,
        context: context_pb2.ContextId,
        mark: context_pb2.StepMark | None,
        deadline: Deadline,
        lay_out: Callable[[Lookup], LaidOut] | None = None,
    ) -> None:
        self.wanted = wanted
        self._tables = tables
        self._context = context
        # What the servers' counts of changes were when they were last asked, by message.
        self._counts: list[int] = []
        self._changed = 0
        self._peeked: Future[None] | None = None
        purpose = Purpose(mark, context, lambda count: 1, ahead=True)

        def fetch() -> Fetched:
            found = look_up(tables, wanted, deadline, purpose)
            return Fetched(found, None if lay_out is None else lay_out(found))

        self._ahead = tables.servers.begin(fetch)

    def peek(self, mark: context_pb2.StepMark | None, deadline: Deadline) -> None:
        """Have a thread bring the rows up to date, for the step before theirs is over.

        Args:
            mark: Of their step; None outside a run.
            deadline: Of the call.
        """
        if self._peeked is None:
            self._peeked = self._tables.servers.begin(lambda: self._peek(mark, deadline))

    def _peek(self, mark: context_pb2.StepMark | None, deadline: Deadline) -> None:
        ahead = self._ahead.result()
        requests = [
            pb.RefreshRequest(
                ahead_context=self._context,
                ahead_lookup=ahead.lookup.first + part.number,
                mark=mark,
                shard_epoch=ahead.lookup.shards.epoch,
                peek=True,
            )
            for part in ahead.lookup.route.parts
        ]
        self._counts = self._bring_up_to_date(ahead, requests, deadline)

    def refresh(self, purpose: Purpose, deadline: Deadline) -> Fetched | None:
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
        # If it failed, all that changed comes now.
        if self._peeked is not None and isinstance(self._peeked.exception(), _GONE):
            return None
        lookup = ahead.lookup
        parts = lookup.route.parts
        first = purpose.reserve(lookup.route.depth)
        requests = [
            pb.RefreshRequest(
                ahead_context=self._context,
                ahead_lookup=lookup.first + part.number,
                context=purpose.context,
                lookup=first + part.number,
                mark=purpose.mark,
                shard_epoch=lookup.shards.epoch,
                since=since,
            )
            for part, since in zip(parts, self._counts or [0] * len(parts), strict=True)
        ]
        try:
            self._bring_up_to_date(ahead, requests, deadline)
        except _GONE:
            return None
        self._tables.metrics.add(
            prefetch_hits=1,
            prefetched_rows=sum(lookup.route.totals),
            refreshed_rows=self._changed,
        )
        return Fetched(lookup._replace(first=first), ahead.laid_out)

    def _bring_up_to_date(
        self, ahead: Fetched, requests: list[pb.RefreshRequest], deadline: Deadline
    ) -> list[int]:
        """Replace the rows that changed; return the servers' counts of changes."""
        lookup = ahead.lookup
        servers, parts = self._tables.servers, lookup.route.parts
        calls = [
            (servers.channel(lookup.shards, part.shard), request)
            for part, request in zip(parts, requests, strict=True)
        ]
        # Rows of the first group, which is the only one of rows that are laid out.
        marks = None if ahead.laid_out is None else np.zeros(lookup.route.totals[0], np.bool_)
        changed, counts = 0, []
        replies = Calls(METHODS["Refresh"], calls, deadline).borrowed()
        for part, request, reply in zip(parts, requests, replies, strict=True):
            counts.append(reply.message.count)
            if request.since and not reply.arrays:
                continue  # nothing changed
            spans = _spans(part)
            if len(reply.arrays) != 2 * len(spans):
                raise InvalidFrame(_OTHER_ROWS)
            arrays = zip(spans.items(), reply.arrays[::2], reply.arrays[1::2], strict=True)
            for (group, span), places, rows in arrays:
                if places.size:
                    _replace(lookup.rows[group][span], places, rows, lookup.wire.rows)
                    changed += places.size
                    if marks is not None:
                        marks[span][places] = True
        self._changed += changed
        if changed and ahead.laid_out is not None:
            laid_out = ahead.laid_out
            copy_marked(lookup.rows[0], laid_out.places, marks, laid_out.rows)
        return counts

    def discard(self) -> None:
        """Let the servers forget the rows."""
        self._tables.metrics.add(prefetch_misses=1)
        with contextlib.suppress(GradmeshError):
            ahead = self._ahead.result().lookup
            servers, request = self._tables.servers, owner_pb2.ReleaseContextRequest
            calls = [
                (servers.channel(ahead.shards, shard), request(context=self._context))
                for shard in ahead.route.shards
            ]
            call_all(METHODS["ReleaseContext"], calls, Deadline.after(_RELEASE_S))


def _spans(part: Part) -> dict[int, slice]:
    """Return where the rows of a message stand in the matrix of each group, one after the other."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for piece in part.pieces:
        begins.setdefault(piece.group, piece.begin)
        ends[piece.group] = piece.begin + piece.ids.size
    return {group: slice(begin, ends[group]) for group, begin in begins.items()}


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
