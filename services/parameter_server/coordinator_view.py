"""The coordinator as a parameter server sees it: table catalogue, shard map, generation."""

import threading
from typing import final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotMember,
    ShardNotReady,
    Unreachable,
)
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.cluster.connection import Connection
from gradmesh.sdk.transport.deadline import Deadline

# Longest wait of a call for the coordinator. Then its caller repeats it, so that a missing
# coordinator cannot fill the server's threads.
_ASK_S = 2.0


@final
class CoordinatorView:
    """Calls the coordinator; `join` sets the connection once the server has an address."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._lock = threading.Lock()  # one refresh at a time, for all waiting calls

    def join(self, connection: Connection) -> None:
        """Set the connection; calls before it raise `ShardNotReady`."""
        self._connection = connection

    def describe(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Return a table's specification.

        Raises:
            TableNotFound: The table does not exist.
            ShardNotReady: The coordinator does not answer.
        """
        try:
            return self._joined().coordinator.describe_table(name, _soon(deadline))
        except (DeadlineExceeded, Unreachable) as error:
            raise _silent(error.message) from error

    def shard_map(self, epoch: int | None, deadline: Deadline) -> ShardMap:
        """Return the current shard map, refreshed if a caller used another one.

        Args:
            epoch: Epoch of the map that the caller used; None if it used none.
            deadline: Deadline of the call.

        Raises:
            ShardNotReady: The coordinator does not answer, or other servers are missing.
        """
        servers = self._joined().servers
        held = servers.held_map()
        if held is not None and epoch in (None, held.epoch):
            return held
        until = _soon(deadline)
        if not self._lock.acquire(timeout=until.remaining_s()):
            raise _silent("other calls wait for it")
        try:
            fresh = servers.held_map()
            if fresh is not None and fresh is not held:
                return fresh
            return servers.refresh(until)
        except (DeadlineExceeded, Unreachable) as error:
            raise _silent(error.message) from error
        finally:
            self._lock.release()

    def check_generation(self, generation: int, deadline: Deadline) -> None:
        """Raise unless the coordinator has opened a generation.

        Raises:
            InvalidRequest: The number is beyond its newest generation.
            ShardNotReady: The coordinator does not answer.
        """
        connection = self._joined()
        if generation <= connection.generation:
            return
        try:
            connection.renew(_soon(deadline))
        except (DeadlineExceeded, NotMember, Unreachable) as error:
            raise _silent(error.message) from error
        newest = connection.generation
        if generation > newest:
            raise InvalidRequest(
                f"a run of generation {generation}, but the trainers' newest is {newest}; join a "
                "generation first and use its number",
                generation=generation,
                newest=newest,
            )

    def _joined(self) -> Connection:
        if self._connection is None:
            raise ShardNotReady("this server has not joined the mesh yet; ask again")
        return self._connection


def _soon(deadline: Deadline) -> Deadline:
    return Deadline.after(min(_ASK_S, deadline.remaining_s() / 2))


def _silent(why: str) -> ShardNotReady:
    return ShardNotReady(f"this server waits for the coordinator: {why}")
