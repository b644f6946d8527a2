"""Pushes: gradients sent outside contexts, each applied exactly once.

What goes to one server in one message has a sequence number of its own, and a confirmed message is
never sent again. A message that a server refused for its shard map took no effect: it is cut again,
into messages with new numbers. A message whose server could not be reached is in doubt: it is sent
again under its number, wherever its rows are by then, so that a server that has applied it already
does nothing.
"""

from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np

from gradmesh.engine.kernels import coalesce
from gradmesh.protos.errors import MeshError, StaleShardMap, Unreachable
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.precision import EXACT, pack
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.cluster.steps import commit_step
from gradmesh.sdk.table.routing import route
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline


class _Gradients(NamedTuple):
    """Gradients of distinct rows that fit in one message to one server."""

    shard: int
    ids: Ids
    rows: Array


class _Push(NamedTuple):
    """One message as it was cut for a shard map, and its number: worker, incarnation, sequence."""

    gradients: _Gradients
    shards: ShardMap
    sender: tuple[str, int, int]
    in_doubt: bool = False
    """Whether it may have taken effect although no server confirmed it."""


@final
class PushFuture:
    """A push under way; made by `start_push`.

    Args:
        table: The table, alone in its set.
        next_push: Returns the number of the next message.
        deadline: Of all attempts together.
    """

    def __init__(
        self, table: TableSet, next_push: Callable[[], tuple[str, int, int]], deadline: Deadline
    ) -> None:
        self._table = table
        self._next_push = next_push
        self._deadline = deadline
        # What no server has confirmed, and the calls under way for it.
        self._left: list[_Push] = []
        self._sent: list[tuple[_Push, PendingCall | MeshError]] = []

    def _cut(
        self, wanted: WantedIds, grads: Array, shards: ShardMap, lasting: bool
    ) -> list[_Gradients]:
        plan = route(self._table, wanted, shards, self._table.servers.max_frame_bytes)
        table = self._table.tables[0]
        if table.bad_gradients.name == "clip":
            grads = table.bad_gradients.clean(grads, table.name)
        if lasting and plan.distinct.size == len(grads) and len(shards.names) == 1:
            rows = grads  # no id repeats, and all are in order
        else:
            rows = coalesce(plan.inverse, grads, plan.totals[0])
        # Servers check again, but if one refused, the push to another could not be undone. A sum is
        # finite only if all its terms are.
        rows = table.bad_gradients.clean(rows, table.name)
        return [
            _Gradients(message.shard, some.ids, rows[some.span])
            for message in plan.messages
            for some in message.slices
        ]

    def _send(self, shards: ShardMap) -> list[tuple[_Push, PendingCall | MeshError]]:
        return [
            (push, self._start_call(push))
            for left in self._left
            for push in self._recut(left, shards)
        ]

    def _recut(self, push: _Push, shards: ShardMap) -> list[_Push]:
        """Return a message cut for a shard map: its rows may be on several servers by now."""
        if push.shards is shards:
            return [push]
        ids = push.gradients.ids
        if not ids.size:
            # It only counts the step, which a server that is gone does not need.
            is_there = push.gradients.shard < len(shards.names)
            return [push._replace(shards=shards)] if is_there else []
        wanted = WantedIds(ids, np.array([0, ids.size], np.int64))
        messages = self._cut(wanted, push.gradients.rows, shards, lasting=True)
        if push.in_doubt:
            return [_Push(message, shards, push.sender, in_doubt=True) for message in messages]
        return [_Push(message, shards, self._next_push()) for message in messages]

    def _start_call(self, push: _Push) -> PendingCall | MeshError:
        gradients, wire = push.gradients, self._table.wire.grads
        try:
            channel = self._table.servers.channel(push.shards, gradients.shard)
            grads = [gradients.rows] if wire == EXACT else pack(gradients.rows, wire)
            head = self._table.heads.push(push.shards.epoch, *push.sender)
            request = Frame(head, [gradients.ids, *grads])
            return channel.start(METHODS["Push"], request, self._deadline)
        except (StaleShardMap, Unreachable) as error:
            return error

    def finish(self) -> None:
        """Wait until all is applied; retry with a newer shard map if a server moved.

        Raises:
            MeshError: A server refused, or could not be reached in time.
        """
        self._table.servers.with_map(self._confirm, self._deadline)

    def _confirm(self, shards: ShardMap) -> None:
        """Wait for the calls under way, or send what is left; keep what was not confirmed."""
        sent, self._sent = self._sent or self._send(shards), []
        failures: list[MeshError] = []
        left: list[_Push] = []
        for push, call in sent:
            error = _failure(call)
            if error is not None:
                failures.append(error)
                refused = isinstance(error, StaleShardMap)
                left.append(push if refused else push._replace(in_doubt=True))
        self._left = left
        if failures:
            final_ones = [e for e in failures if not isinstance(e, StaleShardMap | Unreachable)]
            raise (final_ones or failures)[0]


def start_push(
    table: TableSet,
    wanted: WantedIds,
    grads: Array,
    next_push: Callable[[], tuple[str, int, int]],
    deadline: Deadline,
    *,
    lasting: bool,
) -> PushFuture:
    """Send gradients to all servers that hold any of the rows; return without waiting.

    Args:
        table: The table, alone in its set.
        wanted: Its ids; the gradients of repeated ones are added up.
        grads: Their gradients, [n, dim].
        next_push: Returns the number of the next message.
        deadline: Of all attempts together.
        lasting: Whether the caller leaves the gradients unchanged until `finish`.

    Raises:
        InvalidRequest: The sum of some gradients is not a finite number; nothing was sent.
    """
    if table.servers.prepared_step is not None:
        commit_step(table.servers, deadline)
    future = PushFuture(table, next_push, deadline)
    shards = table.servers.shard_map(deadline)
    messages = future._cut(wanted, grads, shards, lasting)
    target = table.tables[0]
    if target.counts_steps:
        # Servers that hold none of the ids must count the step, too.
        others = set(range(len(shards.names))) - {message.shard for message in messages}
        nothing = np.empty(0, np.int64), np.empty((0, target.dim), grads.dtype)
        messages += [_Gradients(shard, *nothing) for shard in sorted(others)]
    future._left = [_Push(message, shards, next_push()) for message in messages]
    future._sent = future._send(shards)
    table.metrics.count_push(sum([message.ids.size for message in messages]))
    return future


def _failure(call: PendingCall | MeshError) -> MeshError | None:
    """Wait for one message; return what went wrong."""
    if isinstance(call, MeshError):
        return call
    try:
        call.result()
    except MeshError as error:
        return error
    return None
