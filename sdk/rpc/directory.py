"""The directory of workers: names, ranks, addresses, and a channel to each."""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias, final

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2, status_pb2
from gradmesh.protos.errors import InvalidRequest, Unreachable, WorkerNotFound
from gradmesh.sdk.rpc.ids import WorkerId, WorkerInfo
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

Dial: TypeAlias = Callable[[str, str], Channel]
"""Makes a channel from an address and a name."""

To: TypeAlias = str | int | WorkerInfo
"""A worker by name, by rank, or as a WorkerInfo."""


class StatusSource(Protocol):
    """The source of the member list: the coordinator."""

    def get_status(self, deadline: Deadline) -> status_pb2.GetStatusResponse:
        """Return the status of the cluster."""


@final
class WorkerDirectory:
    """All workers of the mesh, as seen from this one.

    The member list is cached. It is fetched again when a name is unknown or a worker does not
    respond.

    Args:
        dial: Makes a channel.
    """

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._lock = threading.Lock()  # guards all below
        self._coordinator: StatusSource | None = None
        self._members: dict[str, membership_pb2.Member] = {}
        self._workers: dict[str, WorkerId] = {}
        self._channels: dict[str, Channel] = {}
        # Every member seen, with its rank; the oldest are dropped when there are too many.
        self._once: dict[WorkerId, int | None] = {}
        self._suspects: set[str] = set()
        self._closed = False

    def join(self, coordinator: StatusSource) -> None:
        """Use a coordinator as the source from now on."""
        self._coordinator = coordinator

    def refresh(self, deadline: Deadline) -> dict[str, membership_pb2.Member]:
        """Fetch the member list; return the members by name.

        Raises:
            Unreachable: This worker has not joined a mesh.
        """
        if self._coordinator is None:
            raise Unreachable("this worker has not joined a mesh yet")
        status = self._coordinator.get_status(deadline)
        members = {one.member.name: one.member for one in status.members}
        with self._lock:
            self._members = members
            self._workers = {
                name: WorkerId(name, m.incarnation) for name, m in members.items() if m.address
            }
            self._suspects.clear()
            self._remember(members.values())
            for name, channel in list(self._channels.items()):
                member = members.get(name)
                if member is None or member.address != channel.address:
                    del self._channels[name]
                    channel.close()
        return members

    def _remember(self, members: Iterable[membership_pb2.Member]) -> None:
        """Record who is a member, as the newest; the lock is held."""
        for member in members:
            worker = WorkerId(member.name, member.incarnation)
            self._once.pop(worker, None)
            self._once[worker] = member.rank if member.HasField("rank") else None
        while len(self._once) > max(limits.DEDUPE_WORKERS, len(self._members)):
            del self._once[next(iter(self._once))]

    def was_member(self, worker: WorkerId) -> bool:
        """Return whether a process was in a fetched member list."""
        with self._lock:
            if worker.incarnation:
                return worker in self._once
            return any(once.name == worker.name for once in self._once)

    def find(self, to: To, deadline: Deadline) -> WorkerInfo:
        """Return a worker.

        Raises:
            WorkerNotFound: No member has that name or rank.
            InvalidRequest: `to` is neither a name nor a rank.
        """
        found = self._known(to)
        if found is None:
            self.refresh(deadline)
            found = self._known(to)
        if found is None:
            named = f"rank {to}" if isinstance(to, int) else repr(getattr(to, "name", to))
            raise WorkerNotFound(
                f"no worker {named} in this mesh; there are "
                f"{', '.join(sorted(name for name, m in self._members.items() if m.address))}",
                worker=named,
            )
        return found

    def _known(self, to: To) -> WorkerInfo | None:
        member: membership_pb2.Member | None = None
        if isinstance(to, WorkerInfo):
            member = self._members.get(to.name)
        elif isinstance(to, str):
            member = self._members.get(to)
        elif isinstance(to, int) and not isinstance(to, bool):
            for one in self._members.values():
                if one.HasField("rank") and one.rank == to:
                    member = one
        else:
            raise InvalidRequest(
                f"a worker is named by its name, rank or WorkerInfo, not by {to!r}"
            )
        return None if member is None or not member.address else info_of(member)

    def known(self, name: str) -> WorkerId:
        """Return a worker from the cached member list, without a request."""
        return self._workers.get(name) or WorkerId(name, 0)

    def infos(self, deadline: Deadline) -> list[WorkerInfo]:
        """Return all workers that can be called, sorted by name."""
        members = self.refresh(deadline)
        return [info_of(m) for _, m in sorted(members.items()) if m.address]

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the channel to a worker.

        Raises:
            WorkerNotFound: No member has that name.
            Unreachable: This worker has left.
        """
        channel = self._channels.get(worker)
        if channel is not None and worker not in self._suspects:
            return channel
        if worker in self._suspects:
            self.refresh(deadline)
        self.find(worker, deadline)
        with self._lock:
            if self._closed:
                raise Unreachable(f"{worker}: rpc was shut down", worker=worker)
            channel = self._channels.get(worker)
            if channel is None:
                member = self._members[worker]
                channel = self._channels[worker] = self._dial(member.address, worker)
        return channel

    def is_gone(self, worker: WorkerId, deadline: Deadline) -> bool:
        """Return whether a process was a member and no longer is; asks the coordinator."""
        return self.is_lost(worker, self.refresh(deadline))

    def is_lost(self, worker: WorkerId, members: dict[str, membership_pb2.Member]) -> bool:
        """Return whether a process was a member and is not in `members`.

        A caller that never was a member has no lease, so its loss cannot be detected.
        """
        member = members.get(worker.name)
        if member is not None and worker.incarnation in (0, member.incarnation):
            return False
        with self._lock:
            return any(
                once.name == worker.name and worker.incarnation in (0, once.incarnation)
                for once in self._once
            )

    def was_there(self, to: To) -> bool:
        """Return whether a worker of that name or rank was in a fetched member list."""
        name = to.name if isinstance(to, WorkerInfo) else to
        with self._lock:
            if isinstance(name, int):
                return name in self._once.values()
            return any(once.name == name for once in self._once)

    def suspect(self, worker: str) -> None:
        """Look up a worker again before the next call to it: it did not respond."""
        with self._lock:
            self._suspects.add(worker)

    def close(self) -> None:
        """Close all channels; may be called twice."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()


def info_of(member: membership_pb2.Member) -> WorkerInfo:
    """Return a member as a WorkerInfo."""
    rank = member.rank if member.HasField("rank") else None
    return WorkerInfo(member.name, rank, member.incarnation)
