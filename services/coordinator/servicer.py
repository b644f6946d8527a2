"""The coordinator's rpcs over its machine: one lock, one condition, bounded waits."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar, final

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import (
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
    ticket_pb2,
)
from gradmesh.protos.errors import MeshError, Retry
from gradmesh.protos.version import VERSION
from gradmesh.sdk.cluster.membership import role_name
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.account import account_of
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Call
from gradmesh.services.coordinator import requests
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.members import MAX_AHEAD_S

T = TypeVar("T")


class OfMember(Protocol):
    """A request that names the member that sends it."""

    @property
    def name(self) -> str:
        """Name of the member."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the member."""


MAX_WAIT_S = 5.0
"""Longest wait of a call before it answers "not yet", so that waiters cannot fill the server."""

# Longest wait of a server for updates of a reshard; each holds a thread.
_UPDATES_S = 0.5


@final
class CoordinatorServicer:
    """Serves the machine.

    Args:
        machine: The state.
        max_waiters: Calls that may wait here at once; the others are refused and repeated, so that
            a thread is always free for heartbeats.
        clock: Monotonic seconds, replaced in tests.
        time_ns: The time since 1970, replaced in tests.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        max_waiters: int = 16,
        clock: Callable[[], float] = time.monotonic,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._machine = machine
        self._max_waiters = max_waiters
        self._clock = clock
        self._time_ns = time_ns
        self._begun = clock()
        # Guards all state; notified after every event that may end a wait.
        self._changed = threading.Condition()
        self._waiters = 0
        self._waits = Counter[str]()
        self._listeners = 0
        self._closed = False

    def sweep(self) -> None:
        """Drop the members whose lease ran out; called periodically."""
        with self._changed:
            if self._machine.expire(self._clock()):
                self._changed.notify_all()

    def close(self) -> None:
        """End all waits, so that the process can end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def register(
        self, request: membership_pb2.RegisterRequest, call: Call
    ) -> membership_pb2.RegisterResponse:
        """Make a process a member."""
        requests.check_register(request)
        call.caller.check_member(role_name(request.member.role))
        with self._changed:
            response = self._machine.register(
                request,
                self._clock(),
                caller=call.caller,
                newest_ns=self._time_ns() + MAX_AHEAD_S * 10**9,
            )
            response.time_ms = self._time_ms()
            self._changed.notify_all()
            return response

    def _time_ms(self) -> int:
        return self._time_ns() // 1_000_000

    def renew_lease(
        self, request: membership_pb2.RenewLeaseRequest, call: Call
    ) -> membership_pb2.RenewLeaseResponse:
        """Extend a lease; the answer waits for updates if the request allows it."""
        contexts = requests.openers_of(request)
        with self._changed:
            self._check_own(request, call)
            found = self._machine.renew(request, self._clock(), contexts)
            left_s = min(request.wait_s, MAX_WAIT_S, call.deadline.to_answer().remaining_s())
            until = Deadline.after(min(left_s, found.lease_s / 2))
            self._listeners += 1
            try:
                # At most half of the waiters: forming generations and keys matter more.
                while not self._closed and self._listeners <= self._max_waiters // 2:
                    if until.passed or _has_updates(found, request):
                        break
                    self._changed.wait(until.remaining_s())
                    # Not a heartbeat: the member has sent nothing since.
                    found = self._machine.updates(request, contexts)
            finally:
                self._listeners -= 1
            found.time_ms = self._time_ms()
            return found

    def leave(
        self, request: membership_pb2.LeaveRequest, call: Call
    ) -> membership_pb2.LeaveResponse:
        """End a membership."""
        with self._changed:
            self._check_own(request, call)
            self._machine.leave(request.name, request.incarnation)
            self._changed.notify_all()
            return membership_pb2.LeaveResponse()

    def _check_own(self, request: OfMember, call: Call) -> None:
        """Raise unless a caller is the member that its request names."""
        self._machine.sessions.check_own(request.name, request.incarnation, call.caller)

    def _check_trainer(self, generation: int, call: Call) -> None:
        """Raise unless a caller is a trainer of a generation, which must be current."""
        rendezvous = self._machine.rendezvous
        if call.caller.is_authenticated:
            rendezvous.check(generation)
            self._machine.sessions.check_trainer(rendezvous.joined, call.caller)

    def issue_tickets(
        self, request: ticket_pb2.IssueTicketsRequest, call: Call
    ) -> ticket_pb2.IssueTicketsResponse:
        """Issue tickets for calls to other members."""
        requests.check_size(request)
        with self._changed:
            return self._machine.sessions.issue(request.audiences, call.caller, self._time_ms())

    def check_workers(
        self, request: ticket_pb2.CheckWorkersRequest, call: Call
    ) -> ticket_pb2.CheckWorkersResponse:
        """Return which processes are members or were members."""
        requests.check_size(request)
        with self._changed:
            registered = self._machine.sessions.registered(request.workers)
            return ticket_pb2.CheckWorkersResponse(registered=registered)

    def join_round(
        self, request: rendezvous_pb2.JoinRoundRequest, call: Call
    ) -> rendezvous_pb2.JoinRoundResponse:
        """Wait until the generation of the trainers is formed."""
        requests.check_size(request)
        with self._changed:
            self._check_own(request, call)
            return self._wait(lambda: self._join(request), call)

    def _join(self, request: rendezvous_pb2.JoinRoundRequest) -> rendezvous_pb2.JoinRoundResponse:
        # Repeated after each change: a waiting trainer joins as soon as the generation has space.
        before = self._machine.rendezvous.current
        if self._machine.join(request, self._clock()):
            fault.point("formed", self._machine.rendezvous.current)
            self._changed.notify_all()
        elif self._machine.rendezvous.current != before:
            self._changed.notify_all()  # a generation ended
        return self._machine.rank_of(request)

    def put_key(
        self, request: rendezvous_pb2.PutKeyRequest, call: Call
    ) -> rendezvous_pb2.PutKeyResponse:
        """Publish a value."""
        requests.check_key(request)
        with self._changed:
            self._check_trainer(request.generation, call)
            self._machine.put(request, account_of(call.caller))
            self._changed.notify_all()
            return rendezvous_pb2.PutKeyResponse()

    def get_key(
        self, request: rendezvous_pb2.GetKeyRequest, call: Call
    ) -> rendezvous_pb2.GetKeyResponse:
        """Wait for a value."""
        with self._changed:
            self._check_trainer(request.generation, call)
            value = self._wait(
                lambda: self._machine.rendezvous.get(request.generation, request.key), call
            )
            return rendezvous_pb2.GetKeyResponse(value=value)

    def create_table(
        self, request: table_pb2.CreateTableRequest, call: Call
    ) -> table_pb2.CreateTableResponse:
        """Add a table to the catalogue."""
        requests.check_table(request)
        with self._changed:
            created = self._machine.create_table(request.spec, account_of(call.caller))
            return table_pb2.CreateTableResponse(created=created)

    def describe_table(
        self, request: table_pb2.DescribeTableRequest, call: Call
    ) -> table_pb2.DescribeTableResponse:
        """Read a table's specification."""
        with self._changed:
            spec = self._machine.catalogue.describe(request.name)
            return table_pb2.DescribeTableResponse(spec=spec)

    def list_tables(
        self, request: table_pb2.ListTablesRequest, call: Call
    ) -> table_pb2.ListTablesResponse:
        """Read a page of the catalogue."""
        with self._changed:
            specs, token = self._machine.catalogue.page(request.page_token, request.page_size)
        return table_pb2.ListTablesResponse(specs=specs, next_page_token=token)

    def get_shard_map(
        self, request: table_pb2.GetShardMapRequest, call: Call
    ) -> table_pb2.GetShardMapResponse:
        """Wait for the parameter servers and return the shard map."""
        with self._changed:
            found = self._wait(self._machine.shard_map, call)
            return table_pb2.GetShardMapResponse(map=found)

    def scale_parameter_servers(
        self, request: reshard_pb2.ScaleParameterServersRequest, call: Call
    ) -> reshard_pb2.ScaleParameterServersResponse:
        """Begin to change the number of parameter servers."""
        with self._changed:
            found = self._wait(lambda: self._machine.scale(request, self._clock()), call)
            self._changed.notify_all()
            return reshard_pb2.ScaleParameterServersResponse(reshard=found)

    def get_reshard(
        self, request: reshard_pb2.GetReshardRequest, call: Call
    ) -> reshard_pb2.GetReshardResponse:
        """Return the newest reshard and its progress."""
        with self._changed:
            return reshard_pb2.GetReshardResponse(reshard=self._machine.scaling.reshards.status())

    def report_move(
        self, request: reshard_pb2.ReportMoveRequest, call: Call
    ) -> reshard_pb2.ReportMoveResponse:
        """Record a server's progress in a reshard, and wait for updates."""
        requests.check_move(request)
        with self._changed:
            self._check_own(request, call)
            before = self._machine.scaling.reshards.state.version
            found = self._machine.report_move(request, self._clock())
            if found.version != before:
                fault.point(f"reshard-{_name(found.phase)}", found.number)
                self._changed.notify_all()
            until = Deadline.after(min(_UPDATES_S, call.deadline.to_answer().remaining_s()))
            self._listeners += 1
            try:
                while not self._closed and self._listeners <= self._max_waiters // 2:
                    if until.passed or found.version != request.version:
                        break
                    self._changed.wait(until.remaining_s())
                    found = self._machine.scaling.reshards.status()
            finally:
                self._listeners -= 1
            return reshard_pb2.ReportMoveResponse(reshard=found)

    def take_shard(
        self, request: data_pb2.TakeShardRequest, call: Call
    ) -> data_pb2.TakeShardResponse:
        """Assign a shard of a data set; wait while other workers hold all remaining ones."""
        requests.check_take(request)
        account = account_of(call.caller)
        with self._changed:
            self._check_own(request, call)
            found = self._wait(lambda: self._machine.take_shard(request, account), call)
            self._changed.notify_all()
            return found

    def get_data_position(
        self, request: data_pb2.GetDataPositionRequest, call: Call
    ) -> data_pb2.GetDataPositionResponse:
        """Return the position of a data set."""
        with self._changed:
            position = self._machine.data_sets.position(request.dataset)
            return data_pb2.GetDataPositionResponse(position=position)

    def set_data_position(
        self, request: data_pb2.SetDataPositionRequest, call: Call
    ) -> data_pb2.SetDataPositionResponse:
        """Set a data set to a saved position."""
        position = requests.position_of(request)
        with self._changed:
            self._machine.set_data_position(request.dataset, position, account_of(call.caller))
            self._changed.notify_all()
            return data_pb2.SetDataPositionResponse()

    def report_progress(
        self, request: status_pb2.ReportProgressRequest, call: Call
    ) -> status_pb2.ReportProgressResponse:
        """Store a trainer's progress."""
        requests.check_size(request)
        with self._changed:
            self._check_own(request, call)
            self._machine.report(request)
            fault.point("reported", request.progress.step)
            return status_pb2.ReportProgressResponse()

    def report_result(
        self, request: status_pb2.ReportResultRequest, call: Call
    ) -> status_pb2.ReportResultResponse:
        """Store the result of a run."""
        requests.check_result(request)
        with self._changed:
            self._check_trainer(request.generation, call)
            self._machine.finish(request)
            return status_pb2.ReportResultResponse()

    def request_checkpoint(
        self, request: status_pb2.RequestCheckpointRequest, call: Call
    ) -> status_pb2.RequestCheckpointResponse:
        """Ask the trainers for a checkpoint."""
        with self._changed:
            number = self._machine.request_checkpoint()
            self._changed.notify_all()
            return status_pb2.RequestCheckpointResponse(request=number)

    def report_checkpoint(
        self, request: status_pb2.ReportCheckpointRequest, call: Call
    ) -> status_pb2.ReportCheckpointResponse:
        """Store a trainer's report about a checkpoint."""
        requests.check_checkpoint(request)
        with self._changed:
            self._check_own(request, call)
            self._machine.report_checkpoint(request, self._clock())
            fault.point("checkpoint-reported", request.checkpoint.step)
            return status_pb2.ReportCheckpointResponse()

    def get_status(
        self, request: status_pb2.GetStatusRequest, call: Call
    ) -> status_pb2.GetStatusResponse:
        """Return the status of the whole cluster, with a page of its members."""
        with self._changed:
            response = self._machine.status(self._clock(), request.page_token, request.page_size)
            response.version = VERSION
            response.uptime_s = self._clock() - self._begun
            return response

    def _wait(self, attempt: Callable[[], T], call: Call) -> T:
        """Repeat `attempt` until it succeeds; raise its error when the time is up.

        A caller that waits for much else already gets the error at once, and repeats the call.
        """
        until = Deadline.after(min(MAX_WAIT_S, call.deadline.to_answer().remaining_s()))
        name = call.caller.name
        self._waits[name] += 1
        self._waiters += 1
        try:
            while True:
                try:
                    return attempt()
                except MeshError as error:
                    may_wait = self._waiters <= self._max_waiters and not self._closed
                    may_wait &= not name or self._waits[name] <= limits.MAX_WAITS
                    if error.retry is not Retry.CALL or until.passed or not may_wait:
                        raise
                self._changed.wait(until.remaining_s())
        finally:
            self._waiters -= 1
            self._waits[name] -= 1
            if not self._waits[name]:
                del self._waits[name]


def _has_updates(
    found: membership_pb2.RenewLeaseResponse, held: membership_pb2.RenewLeaseRequest
) -> bool:
    """Return whether a response differs from the values that the member holds."""
    names = ("generation", "shard_epoch", "checkpoint_request", "reshard")
    return bool(found.gone) or any(getattr(found, n) != getattr(held, n) for n in names)


def _name(phase: reshard_pb2.ReshardPhase) -> str:
    """Return the name of a phase in logs and fault points."""
    return reshard_pb2.ReshardPhase.Name(phase).rpartition("_")[2].lower()
