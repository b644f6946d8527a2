"""A frozen state of tables on all servers, as a client reads it."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias, final

from gradmesh.protos.errors import DeadlineExceeded, GradmeshError
from gradmesh.protos.frame import Array
from gradmesh.protos.method import Body
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.mesh.servers import METHODS, ParameterServers
from gradmesh.sdk.transport.deadline import Deadline

Block: TypeAlias = dict[str, Array]
Progress: TypeAlias = Callable[[int, int], object]
"""Called with rows done and rows in all; the latter is an estimate while tables grow."""

# A step that no run comes to: asks where the servers are.
_NEVER = 1 << 62
_POLL_S = 0.005
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
    ) -> None:
        self._servers = servers
        self._call_s = call_s
        self._tables = list(tables)
        self._base = base
        deadline = Deadline.after(freeze_s)
        self.shards: ShardMap = servers.refresh(deadline)
        self.name = ""
        self._stored = False
        try:
            found = self._freeze(deadline)
        except BaseException:
            self.close()
            raise
        self.generation = found[0].generation
        self.step = found[0].applied_steps
        self.steps = {
            name: [reply.tables[i].steps for reply in found] for i, name in enumerate(self._tables)
        }
        self.rows = sum(table.rows for reply in found for table in reply.tables)

    def _freeze(self, deadline: Deadline) -> list[pb.BeginSnapshotResponse]:
        """Find a step that no server has passed; each try is further ahead of them."""
        ahead, step = 0, _NEVER
        self.name = uuid.uuid4().hex
        while not deadline.passed:
            found = self._begin(step, deadline)
            if len({reply.generation for reply in found}) == 1:
                if all(reply.frozen for reply in found):
                    return found
                pending = [reply for reply in found if not reply.frozen]
                if step != _NEVER and all(reply.applied_steps <= step for reply in pending):
                    time.sleep(_POLL_S)
                    continue
            self.close()
            self.name = uuid.uuid4().hex
            step = max(reply.applied_steps for reply in found) + ahead
            ahead = max(1, 2 * ahead)
        raise DeadlineExceeded(
            "the servers came to no common step in time: trainers have stopped in the middle of "
            "one, or a run is just beginning; try again when it goes on or is over"
        )

    def _begin(self, step: int, deadline: Deadline) -> list[pb.BeginSnapshotResponse]:
        request = pb.BeginSnapshotRequest(
            snapshot=self.name, tables=self._tables, step=step, base=self._base
        )
        return self._ask_all("BeginSnapshot", request, deadline)

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
        """Tell the servers that all of it is stored: the next one may add to it."""
        request = pb.EndSnapshotRequest(snapshot=self.name, stored=True)
        self._ask_all("EndSnapshot", request, Deadline.after(self._call_s))
        self.name = ""

    def close(self) -> None:
        """Let the snapshot go; may be called twice."""
        if not self.name:
            return
        request = pb.EndSnapshotRequest(snapshot=self.name)
        self.name = ""
        try:
            self._ask_all("EndSnapshot", request, Deadline.after(_CLEAN_UP_S))
        except GradmeshError:
            # A server that cannot be told forgets it by itself.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
