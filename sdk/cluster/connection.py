"""One process's place in the mesh: its lease, the coordinator and the parameter servers."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import final

from gradmesh.protos.common.v1 import context_pb2, worker_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2, rendezvous_pb2, status_pb2
from gradmesh.protos.errors import InvalidRequest, MeshError, NotMember
from gradmesh.protos.limits import check_name
from gradmesh.sdk.cluster import steps
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.cluster.lease import Lease, OpenContexts
from gradmesh.sdk.cluster.membership import ROLES, KeyStore, Membership, Role
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.cluster.steps import RunState
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.identity import MemberIdentity
from gradmesh.sdk.transport.policy import Timeouts

# A process that leaves after an error may have lost a server: do not wait for long.
_LEAVE_COMMIT_S = 2.0


@final
class Connection:
    """A process's connection to the mesh, from `open` to `close`; the constructor does no I/O.

    Args:
        coordinator: Address of the coordinator, "host:port".
        name: Name of this process, unique in the mesh.
        role: Role of this process.
        address: Where other processes reach this one; empty for clients, which serve nothing.
        incarnation: Greater than that of any former process of this name; by default that of the
            dialer's identity, or else the time.
        rank: Rank among the workers, if it has one.
        world_size: Number of workers that wait for each other at their start; 0 for none.
        dial: Makes channels; without an identity it gets one of this process.
        timeouts: Deadlines of calls that set none.
        on_lost: Called once if another process takes this one's name.

    Attributes:
        name: Name of this process.
        incarnation: Distinguishes it from a former process of the same name.
        coordinator: The coordinator's rpcs.
        servers: The parameter servers.
        identity: This process's session with the coordinator.
        tickets: Its tickets for other members.

    Raises:
        InvalidRequest: The role or the name is wrong.
    """

    def __init__(
        self,
        coordinator: str,
        *,
        name: str,
        role: Role = "client",
        address: str = "",
        incarnation: int | None = None,
        rank: int | None = None,
        world_size: int = 0,
        dial: Dialer,
        timeouts: Timeouts,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        if role not in ROLES:
            raise InvalidRequest(f"no role {role!r}; there are {', '.join(ROLES)}", role=role)
        self.name = check_name("worker", name)
        if dial.identity is None:
            dial = dial.of_process(MemberIdentity(name, incarnation))
        assert dial.identity is not None
        self.identity = identity = dial.identity
        self.tickets = dial.tickets
        self.incarnation = identity.incarnation
        self.timeouts = timeouts
        self._channel = dial.coordinator(coordinator)
        self.coordinator = Coordinator(self._channel, identity.session)
        if self.tickets is not None:
            self.tickets.join(self.coordinator.issue_tickets)
        member = membership_pb2.Member(
            name=name,
            role=ROLES[role],
            address=address,
            incarnation=self.incarnation,
            rank=rank,
            world_size=world_size,
        )
        self._lease = Lease(self.coordinator, member, on_lost=on_lost, clock=identity.clock)
        self.servers = ParameterServers(
            self.coordinator,
            dial,
            max_frame_bytes=dial.max_frame_bytes,
            owner=worker_pb2.WorkerId(name=name, incarnation=self.incarnation),
        )
        self._generation = 0
        self._contexts = itertools.count(1)
        self._sequence = itertools.count(1)

    def open(self, *, replace: bool = False) -> None:
        """Register with the coordinator, and keep the lease alive.

        Args:
            replace: Whether the former holder of the name is known to be gone.

        Raises:
            Unreachable: No coordinator answered in time.
            NameTaken: A live process holds the name.
            Unauthenticated: The token is missing or wrong.
        """
        try:
            self._lease.start(replace=replace, deadline=Deadline.after(self.timeouts.join_s))
        except BaseException:
            self._channel.close()
            raise

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """Return the deadline of a call that begins now."""
        return Deadline.within(timeout_s, self.timeouts.call_s)

    def new_context_id(self) -> context_pb2.ContextId:
        """Return an id that no context had before."""
        return context_pb2.ContextId(
            worker=self.name, incarnation=self.incarnation, counter=next(self._contexts)
        )

    def next_push(self) -> tuple[str, int, int]:
        """Return name, incarnation and sequence number of a new push."""
        return self.name, self.incarnation, next(self._sequence)

    def watch_contexts(self, contexts: OpenContexts) -> None:
        """Report open contexts with every heartbeat, and end those of workers that are gone."""
        self._lease.watch(contexts)

    @property
    def generation(self) -> int:
        """The trainers' current generation, as of the last heartbeat."""
        return self._lease.generation

    @property
    def checkpoint_request(self) -> int:
        """Number of the newest request for a checkpoint, as of the last heartbeat."""
        return self._lease.checkpoint_request

    @property
    def reshard(self) -> int:
        """Number of the reshard under way, as of the last heartbeat; 0 for none."""
        return self._lease.reshard

    @property
    def authenticates(self) -> bool:
        """Whether the coordinator authenticates its callers, and so issues tickets."""
        return self._lease.authenticates

    def renew(self, deadline: Deadline) -> None:
        """Send a heartbeat now, and take over what has changed.

        Raises:
            NameTaken: Another process took the name of this one.
        """
        self._lease.renew(deadline)

    def join_trainers(self, timeout_s: float, job: str = "") -> Membership:
        """Wait for a rank in a new generation.

        Args:
            timeout_s: For how long.
            job: Name of the job, if it has one.

        Raises:
            DeadlineExceeded: Trainers are missing; the message says how many.
            JobDone: The job has its result already.
        """
        deadline = Deadline.after(timeout_s)
        try:
            joined = self._join(deadline, job)
        except NotMember:
            # The coordinator restarted, and the lease thread has not registered again yet.
            self._lease.renew(deadline)
            joined = self._join(deadline, job)
        self._generation = joined.generation
        return Membership(joined.generation, joined.rank, joined.world_size)

    def _join(self, deadline: Deadline, job: str) -> rendezvous_pb2.JoinRoundResponse:
        return self.coordinator.join_round(
            self.name, self.incarnation, self._generation, deadline, job
        )

    def store(self, generation: int) -> KeyStore:
        """Return the store of values that the trainers of a generation publish to each other."""
        return KeyStore(self.coordinator, generation, self.timeouts.call_s)

    def find_run(self, membership: Membership) -> RunState | None:
        """Return the step from which the servers can resume a run, as `steps.find_run`."""
        return steps.find_run(self.servers, membership, self.deadline())

    def start_run(
        self,
        membership: Membership,
        tables: Sequence[str],
        *,
        state: RunState | None = None,
        staleness: int | None = None,
    ) -> RunState:
        """Start a run on all parameter servers, or resume one, as `steps.start_run`."""
        return steps.start_run(
            self.servers, membership, tables, self.deadline(), state=state, staleness=staleness
        )

    def commit_step(self, timeout_s: float | None = None) -> None:
        """Have the newest step of this process applied on every server, e.g. to read its rows.

        Within a run the next step does that; the last one needs it.
        """
        steps.commit_step(self.servers, self.deadline(timeout_s))

    def report_progress(self, progress: status_pb2.Progress, timeout_s: float) -> None:
        """Report the progress of this trainer to the coordinator."""
        self.coordinator.report_progress(
            self.name, self.incarnation, progress, self.deadline(timeout_s)
        )

    def report_result(
        self, membership: Membership, results: dict[str, float], job: str = ""
    ) -> None:
        """Report the results of a run to the coordinator, and that its job is done."""
        self.coordinator.report_result(membership.generation, results, self.deadline(), job)

    def close(self) -> None:
        """Leave the mesh; may be called twice."""
        with contextlib.suppress(MeshError):
            self.commit_step(_LEAVE_COMMIT_S)
        self._lease.close()
        self.servers.close()
        self._channel.close()
