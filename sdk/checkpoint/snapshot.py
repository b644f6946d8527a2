"""A consistent cut of tables on all servers, as a client freezes and reads it."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias, final

from gradmesh.protos.errors import (
    Cancelled,
    DeadlineExceeded,
    MeshError,
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

# A step that no run reaches: a request for it only returns the servers' progress.
_NEVER = 1 << 62
_POLL_S = 0.005
# Polls without a step under way until the run counts as idle.
_STILL_POLLS = 8
_CLEAN_UP_S = 5.0


@final
class ProgressCounter:
    """Adds up the rows that threads have done; ends the threads after a failure or the deadline.

    Args:
        total: Rows in all.
        progress: Called with each change, one call at a time.
        deadline: Of the whole.
    """

    def __init__(self, total: int, progress: Progress | None, deadline: Deadline) -> None:
        self.deadline = deadline
        self._total = total
        self._progress = progress
        self._lock = threading.Lock()  # guards _done
        self._done = 0
        self._stopped = False

    def add(self, rows: int) -> None:
        """Count rows.

        Raises:
            DeadlineExceeded: The deadline has passed.
            Cancelled: Another thread failed.
        """
        if self._stopped:
            raise Cancelled("another part of the work failed")
        if self.deadline.passed:
            raise DeadlineExceeded(f"{self._done} of {self._total} rows were done in time")
        with self._lock:
            self._done += rows
            if self._progress is not None:
                self._progress(self._done, max(self._done, self._total))

    def stop(self) -> None:
        """End all threads at their next `add`."""
        self._stopped = True


@final
class Snapshot:
    """Tables frozen at one moment: in a run after one step on all servers, else as they were found.

    Made by `take` or `request`; a context manager, whose end releases the snapshot on the servers.

    Args:
        servers: All servers.
        tables: Names.
        shards: The shard map.
        base: A former snapshot; only what changed since then is read. Empty for everything.
        call_s: Longest time of one call.
        step: The step that was requested; None for the one that `take` found.
    """

    def __init__(
        self,
        servers: ParameterServers,
        tables: Sequence[str],
        shards: ShardMap,
        base: str,
        call_s: float,
        step: int | None,
    ) -> None:
        self.shards = shards
        self.name = ""
        self._servers = servers
        self._tables = list(tables)
        self._base = base
        self._call_s = call_s
        self._step = step

    @classmethod
    def take(
        cls,
        servers: ParameterServers,
        tables: Sequence[str],
        *,
        base: str = "",
        freeze_s: float,
        call_s: float,
    ) -> Self:
        """Freeze tables now; in a run at the next step that all servers can be frozen at.

        Args:
            servers: All servers.
            tables: Names.
            base: A former snapshot; only what changed since then is read. Empty for everything.
            freeze_s: How long to wait for a common step.
            call_s: Longest time of one call.

        Raises:
            BaseLost: A server does not know what changed since the base.
            DeadlineExceeded: The run does not come to a common step.
        """
        deadline = Deadline.after(freeze_s)
        commit_step(servers, deadline)
        made = cls(servers, tables, servers.refresh(deadline), base, call_s, None)
        try:
            made._accept(made._freeze(deadline))
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def request(
        cls,
        servers: ParameterServers,
        tables: Sequence[str],
        step: int,
        *,
        base: str = "",
        freeze_s: float,
        call_s: float,
    ) -> Self:
        """Ask the servers to freeze tables when they apply a step; `wait` waits for it.

        Args:
            servers: All servers.
            tables: Names.
            step: A step of the run that no server has applied yet.
            base: A former snapshot; only what changed since then is read. Empty for everything.
            freeze_s: How long the servers have to accept the request.
            call_s: Longest time of one call.

        Raises:
            BaseLost: A server does not know what changed since the base.
        """
        deadline = Deadline.after(freeze_s)
        made = cls(servers, tables, servers.refresh(deadline), base, call_s, step)
        made.name = uuid.uuid4().hex
        try:
            made._begin(step, deadline)
        except BaseException:
            made.close()
            raise
        return made

    def wait(self, deadline: Deadline) -> None:
        """Wait until all servers have applied the requested step.

        Raises:
            SnapshotLost: The run has ended, or the step had passed.
            DeadlineExceeded: The run does not come to it.
        """
        while True:
            found = self._begin(self._step, deadline)
            if all(reply.frozen for reply in found):
                self._accept(found)
                return
            if any(not r.frozen and r.applied_steps >= (self._step or 0) for r in found):
                raise SnapshotLost(
                    f"step {self._step} has passed on a server: a new run began; try again"
                )
            if deadline.passed:
                raise DeadlineExceeded(f"the run does not come to step {self._step}")
            time.sleep(_POLL_S)

    def _accept(self, found: Sequence[pb.BeginSnapshotResponse]) -> None:
        self.generation = found[0].generation
        self.step = found[0].applied_steps
        self.steps = {
            name: [reply.tables[i].steps for reply in found] for i, name in enumerate(self._tables)
        }
        self.rows = sum(table.rows for reply in found for table in reply.tables)

    def _freeze(self, deadline: Deadline) -> list[pb.BeginSnapshotResponse]:
        """Find a step that no server has passed; each try looks further ahead."""
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
            "one, or a run is just beginning; try again when the run continues or has ended"
        )

    def _wait(self, step: int | None, patience: Deadline) -> list[pb.BeginSnapshotResponse]:
        """Wait for a step until it has passed or no server moves; return where the servers are."""
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
                "rows have moved to other servers meanwhile; start again", snapshot=self.name
            ) from error

    def _ask_all(self, name: str, request: Body, deadline: Deadline) -> list[Any]:
        requests: Mapping[int, Body] = dict.fromkeys(range(len(self.shards.names)), request)
        replies = self._servers.call_each(self.shards, name, requests, deadline)
        return list(replies.values())

    def pages(self, shard: int, table: str, deadline: Deadline) -> Iterator[Block]:
        """Yield the blocks of a table on one server; can be called once.

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
        """Allow the next snapshot to use this one as its base, because it is stored completely.

        A server that cannot be reached refuses the next one, which must be a full one then.
        """
        request = pb.EndSnapshotRequest(snapshot=self.name, stored=True)
        with contextlib.suppress(MeshError):
            self._ask_all("EndSnapshot", request, Deadline.after(self._call_s))
        self.close()

    def close(self) -> None:
        """Release the snapshot on the servers; may be called twice."""
        if not self.name:
            return
        request = pb.EndSnapshotRequest(snapshot=self.name)
        self.name = ""
        # A server that cannot be reached releases it by itself.
        with contextlib.suppress(MeshError):
            self._ask_all("EndSnapshot", request, Deadline.after(_CLEAN_UP_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_common(found: Sequence[pb.BeginSnapshotResponse]) -> bool:
    return len({(reply.generation, reply.applied_steps) for reply in found}) == 1
