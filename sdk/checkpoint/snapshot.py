"""A frozen state of tables on all servers, as a client reads it."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias, final

from gradmesh.protos.errors import (
    DeadlineExceeded,
    GradmeshError,
    SnapshotLost,
    StaleShardMap,
)
from gradmesh.protos.frame import Array
from gradmesh.protos.method import Body
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.cluster.servers import METHODS, ParameterServers
from gradmesh.sdk.cluster.steps import commit_step
from gradmesh.sdk.transport.deadline import Deadline

Block: TypeAlias = dict[str, Array]
Progress: TypeAlias = Callable[[int, int], object]
"""Called with rows done and rows in all; the latter is an estimate while tables grow."""

# A step that no run comes to: asks where the servers are.
_NEVER = 1 << 62
_POLL_S = 0.005
# So often no step may be seen under way before we believe that none is.
_STILL_POLLS = 8
_CLEAN_UP_S = 5.0


@final
class Snapshot:
    """Tables at one moment: in a run after one step on all servers, else when they were asked.

    A context manager; leaving it lets the snapshot go.

    Args:
        servers: Who holds the rows.
        tables: Names.
        base: A former snapshot; only what changed since then is read. Empty for everything.
        freeze_s: How long to wait for a step that all servers can be frozen at.
        call_s: Longest time of one call.
        step: A step of the run that no server has applied yet: the servers are asked to freeze when
            they do, and `wait` waits for it. None finds one by itself.

    Raises:
        BaseLost: A server does not know what changed since the base.
        DeadlineExceeded: The run does not come to a common step.
    """

    def __init__(
        self,
        servers: ParameterServers,
        tables: Sequence[str],
        *,
        base: str = "",
        freeze_s: float,
        call_s: float,
        step: int | None = None,
    ) -> None:
        self._servers = servers
        self._call_s = call_s
        self._tables = list(tables)
        self._base = base
        self._step = step
        deadline = Deadline.after(freeze_s)
        if step is None:
            commit_step(servers, deadline)
        self.shards: ShardMap = servers.refresh(deadline)
        self.name = "" if step is None else uuid.uuid4().hex
        try:
            if step is None:
                self._take(self._freeze(deadline))
            else:
                self._begin(step, deadline)
        except BaseException:
            self.close()
            raise

    def wait(self, deadline: Deadline) -> None:
        """Wait until all servers have applied the step that was given.

        Raises:
            SnapshotLost: The run is over, or the step had passed.
            DeadlineExceeded: The run does not come to it.
        """
        while True:
            found = self._begin(self._step, deadline)
            if all(reply.frozen for reply in found):
                self._take(found)
                return
            if any(not r.frozen and r.applied_steps >= (self._step or 0) for r in found):
                raise SnapshotLost(
                    f"step {self._step} has passed on a server: the run began anew; try again"
                )
            if deadline.passed:
                raise DeadlineExceeded(f"the run does not come to step {self._step}")
            time.sleep(_POLL_S)

    def _take(self, found: Sequence[pb.BeginSnapshotResponse]) -> None:
        self.generation = found[0].generation
        self.step = found[0].applied_steps
        self.steps = {
            name: [reply.tables[i].steps for reply in found] for i, name in enumerate(self._tables)
        }
        self.rows = sum(table.rows for reply in found for table in reply.tables)

    def _freeze(self, deadline: Deadline) -> list[pb.BeginSnapshotResponse]:
        """Find a step that no server has passed; each try is further ahead of them."""
        patience = Deadline.after(deadline.remaining_s() / 2)
        ahead, found = 1, self._wait(_NEVER, patience)
        while not deadline.passed:
            newest = max(reply.applied_steps for reply in found)
            running = any(reply.open_contexts for reply in found) and not patience.passed
            found = self._wait(newest + ahead if running else None, patience)
            if all(reply.frozen for reply in found) and _is_common(found):
                return found
            ahead *= 2
        raise DeadlineExceeded(
            "the servers came to no common step in time: trainers have stopped in the middle of "
            "one, or a run is just beginning; try again when it goes on or is over"
        )

    def _wait(self, step: int | None, patience: Deadline) -> list[pb.BeginSnapshotResponse]:
        """Wait for a step, unless it has passed or nothing moves; then say where servers are."""
        self.close()
        self.name = uuid.uuid4().hex
        still, former = 0, -1
        while True:
            found = self._begin(step, Deadline.after(self._call_s))
            pending = [reply for reply in found if not reply.frozen]
            newest = max(reply.applied_steps for reply in found)
            passed = step is None or any(reply.applied_steps >= step for reply in pending)
            if passed or not pending or patience.passed:
                return found
            under_way = any(reply.open_contexts for reply in found)
            still = 0 if under_way or newest != former else still + 1
            former = newest
            if still == _STILL_POLLS or (step == _NEVER and under_way):
                return found
            time.sleep(_POLL_S)

    def _begin(self, step: int | None, deadline: Deadline) -> list[pb.BeginSnapshotResponse]:
        request = pb.BeginSnapshotRequest(
            snapshot=self.name,
            tables=self._tables,
            step=step,
            base=self._base,
            shard_epoch=self.shards.epoch,
            owner=self._servers.owner,
        )
        try:
            return self._ask_all("BeginSnapshot", request, deadline)
        except StaleShardMap as error:
            raise SnapshotLost(
                "rows have moved to other servers meanwhile; begin again", snapshot=self.name
            ) from error

    def _ask_all(self, name: str, request: Body, deadline: Deadline) -> list[Any]:
        requests: Mapping[int, Body] = dict.fromkeys(range(len(self.shards.names)), request)
        replies = self._servers.call_each(self.shards, name, requests, deadline)
        return list(replies.values())

    def pages(self, shard: int, table: str, deadline: Deadline) -> Iterator[Block]:
        """Yield what one server has of a table; can be done once.

        Raises:
            SnapshotLost: The server restarted, or began a new run.
        """
        channel = self._servers.channel(self.shards, shard)
        cursor = 0
        while True:
            request = pb.ReadSnapshotRequest(snapshot=self.name, table=table, cursor=cursor)
            limit = Deadline.after(min(self._call_s, deadline.remaining_s()))
            reply = channel.call(METHODS["ReadSnapshot"], request, limit)
            block = dict(zip(reply.message.names, reply.arrays, strict=True))
            if block:
                yield block
            cursor = reply.message.next_cursor
            if not cursor:
                return

    def keep_as_base(self) -> None:
        """Tell the servers that all of it is stored: the next one may add to it.

        A server that cannot be told refuses the next one, and a full one is made then.
        """
        request = pb.EndSnapshotRequest(snapshot=self.name, stored=True)
        with contextlib.suppress(GradmeshError):
            self._ask_all("EndSnapshot", request, Deadline.after(self._call_s))
        self.close()

    def close(self) -> None:
        """Let the snapshot go; may be called twice."""
        if not self.name:
            return
        request = pb.EndSnapshotRequest(snapshot=self.name)
        self.name = ""
        # A server that cannot be told forgets it by itself.
        with contextlib.suppress(GradmeshError):
            self._ask_all("EndSnapshot", request, Deadline.after(_CLEAN_UP_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_common(found: Sequence[pb.BeginSnapshotResponse]) -> bool:
    return len({(reply.generation, reply.applied_steps) for reply in found}) == 1
