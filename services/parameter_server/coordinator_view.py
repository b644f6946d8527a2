"""What a parameter server knows from the coordinator: tables and the shard map."""

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
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.transport.deadline import Deadline

# Longest a call waits for the coordinator in here; then its caller is told to ask again, so that
# a missing coordinator cannot fill the server's threads.
_ASK_S = 2.0


@final
class CoordinatorView:
    """Asks the coordinator; `join` gives it the mesh once the server has an address."""

    def __init__(self) -> None:
        self._mesh: Mesh | None = None
        self._lock = threading.Lock()  # one refresh at a time, however many calls want it

    def join(self, mesh: Mesh) -> None:
        """Begin to answer."""
        self._mesh = mesh

    def describe(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Return a table's specification.

        Raises:
            TableNotFound: There is no such table.
            ShardNotReady: The coordinator does not answer.
        """
        try:
            return self._joined().coordinator.describe_table(name, _soon(deadline))
        except (DeadlineExceeded, Unreachable) as error:
            raise _silent(error.message) from error

    def shard_map(self, epoch: int | None, deadline: Deadline) -> ShardMap:
        """Return the current shard map, fetched anew if a caller has seen another one.

        Args:
            epoch: Of the map that the caller used; None if it used none.
            deadline: Of the call.

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
        """Return if the trainers have had a generation, as the coordinator says.

        Raises:
            InvalidRequest: They have not.
            ShardNotReady: The coordinator does not answer.
        """
        mesh = self._joined()
        if generation <= mesh.generation:
            return
        try:
            mesh.renew(_soon(deadline))
        except (DeadlineExceeded, NotMember, Unreachable) as error:
            raise _silent(error.message) from error
        newest = mesh.generation
        if generation > newest:
            raise InvalidRequest(
                f"a run of generation {generation}, though the trainers' newest is {newest}; join "
                "the round first and take the generation that it gives",
                generation=generation,
                newest=newest,
            )

    def _joined(self) -> Mesh:
        if self._mesh is None:
            raise ShardNotReady("this server has not joined the mesh yet; ask again")
        return self._mesh


def _soon(deadline: Deadline) -> Deadline:
    return Deadline.after(min(_ASK_S, deadline.remaining_s() / 2))


def _silent(why: str) -> ShardNotReady:
    return ShardNotReady(f"this server waits for the coordinator: {why}")
