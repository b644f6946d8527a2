"""Sending gradients outside contexts, each exactly once.

What goes to one server in one message is a part with a number of its own, and a confirmed part is
never sent again. A part that a server refused for its map took no effect: it is cut anew, into
parts with numbers of their own. Of a part whose server could not be reached nobody knows; it is
sent again under its number, wherever its rows are by then, so that a server that has it already
does nothing.
"""

from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np

from gradmesh.engine.kernels import coalesce
from gradmesh.protos.errors import GradmeshError, StaleShardMap, Unreachable
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.precision import EXACT, pack
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.cluster.steps import commit_step
from gradmesh.sdk.table.routing import route
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline


class _Message(NamedTuple):
    """Gradients of distinct rows that fit in one message to one server."""

    shard: int
    ids: Ids
    rows: Array


class _Part(NamedTuple):
    """A message as it was cut with a map, and its number: (worker, incarnation, sequence)."""

    message: _Message
    shards: ShardMap
    sender: tuple[str, int, int]
    doubtful: bool = False
    """Whether it may have taken effect, though nobody said so."""


@final
class PendingPush:
    """A push under way; made and sent at once.

    Args:
        table: The table, alone in its set.
        wanted: Its ids; repeated ones add up.
        grads: Their gradients, [n, dim].
        next_push: Returns the number of the next part.
        deadline: Of all attempts together.
        lasting: Whether the gradients stay as they are until `finish`.

    Raises:
        InvalidRequest: The sum of some gradients is no number; nothing was sent.
    """

    def __init__(
        self,
        table: TableSet,
        wanted: WantedIds,
        grads: Array,
        next_push: Callable[[], tuple[str, int, int]],
        deadline: Deadline,
        *,
        lasting: bool,
    ) -> None:
        self._table = table
        self._next_push = next_push
        self._deadline = deadline
        if table.servers.prepared_step is not None:
            commit_step(table.servers, deadline)
        shards = table.servers.shard_map(deadline)
        messages = self._cut(wanted, grads, shards, lasting)
        target = table.tables[0]
        if target.counts_steps:
            # Whoever holds none of the ids must count the step, too.
            others = set(range(len(shards.names))) - {message.shard for message in messages}
            nothing = np.empty(0, np.int64), np.empty((0, target.dim), grads.dtype)
            messages += [_Message(shard, *nothing) for shard in sorted(others)]
        self._left = [_Part(message, shards, next_push()) for message in messages]
        self._sent = self._send(shards)
        table.metrics.note_push(sum([message.ids.size for message in messages]))

    def _cut(
        self, wanted: WantedIds, grads: Array, shards: ShardMap, lasting: bool
    ) -> list[_Message]:
        plan = route(self._table, wanted, shards, self._table.servers.max_frame_bytes)
        table = self._table.tables[0]
        if table.bad_gradients.name == "clip":
            grads = table.bad_gradients.clean(grads, table.name)
        if lasting and plan.distinct.size == len(grads) and len(shards.names) == 1:
            rows = grads  # no id twice, and all in their places
        else:
            rows = coalesce(plan.inverse, grads, plan.totals[0])
        # Here, too, though each server looks again: one server's refusal cannot undo another's
        # push. A sum is finite only if all that it is made of is.
        rows = table.bad_gradients.clean(rows, table.name)
        return [
            _Message(part.shard, piece.ids, rows[piece.place])
            for part in plan.parts
            for piece in part.pieces
        ]

    def _send(self, shards: ShardMap) -> list[tuple[_Part, PendingCall | GradmeshError]]:
        return [
            (piece, self._start(piece))
            for part in self._left
            for piece in self._pieces(part, shards)
        ]

    def _pieces(self, part: _Part, shards: ShardMap) -> list[_Part]:
        """Return a part as a map has it: its rows may have come apart since it was cut."""
        if part.shards is shards:
            return [part]
        ids = part.message.ids
        if not ids.size:
            # Only to count the step; where there is no such server any more, nobody has to.
            is_there = part.message.shard < len(shards.names)
            return [part._replace(shards=shards)] if is_there else []
        wanted = WantedIds(ids, np.array([0, ids.size], np.int64))
        messages = self._cut(wanted, part.message.rows, shards, lasting=True)
        if part.doubtful:
            return [_Part(message, shards, part.sender, doubtful=True) for message in messages]
        return [_Part(message, shards, self._next_push()) for message in messages]

    def _start(self, part: _Part) -> PendingCall | GradmeshError:
        message, wire = part.message, self._table.wire.grads
        try:
            channel = self._table.servers.channel(part.shards, message.shard)
            grads = [message.rows] if wire == EXACT else pack(message.rows, wire)
            head = self._table.heads.push(part.shards.epoch, *part.sender)
            request = Frame(head, [message.ids, *grads])
            return channel.start(METHODS["Push"], request, self._deadline)
        except (StaleShardMap, Unreachable) as error:
            return error

    def finish(self) -> None:
        """Wait until all is applied; servers that moved are found again, until the deadline.

        Raises:
            GradmeshError: A server refused, or could not be reached in time.
        """
        self._table.servers.with_map(self._confirm, self._deadline)

    def _confirm(self, shards: ShardMap) -> None:
        """Wait for what was sent, or send what is left; keep what was not confirmed."""
        sent, self._sent = self._sent or self._send(shards), []
        failures: list[GradmeshError] = []
        left: list[_Part] = []
        for part, call in sent:
            error = _failure(call)
            if error is not None:
                failures.append(error)
                refused = isinstance(error, StaleShardMap)
                left.append(part if refused else part._replace(doubtful=True))
        self._left = left
        if failures:
            final_ones = [e for e in failures if not isinstance(e, StaleShardMap | Unreachable)]
            raise (final_ones or failures)[0]


def _failure(call: PendingCall | GradmeshError) -> GradmeshError | None:
    """Wait for one message; return what went wrong."""
    if isinstance(call, GradmeshError):
        return call
    try:
        call.result()
    except GradmeshError as error:
        return error
    return None
