"""Client of the coordinator, at one address or at one of several."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast, final

from gradmesh.protos.coordinator.v1 import (
    coordinator_pb2,
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
    ticket_pb2,
)
from gradmesh.protos.errors import DeadlineExceeded, Unreachable
from gradmesh.protos.limits import shortened
from gradmesh.protos.method import Body, methods_of
from gradmesh.protos.page import all_pages
from gradmesh.protos.version import PROTOCOL
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

_METHODS = methods_of(coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"])


@final
class Coordinator:
    """The coordinator behind a channel.

    Args:
        channel: Connection to it; the caller closes it.
        session: The session key of this process, if it becomes a member.
    """

    def __init__(self, channel: Channel, session: bytes = b"") -> None:
        self._channel = channel
        self._session = session

    @property
    def address(self) -> str:
        """Where the coordinator is."""
        return self._channel.address

    def _call(self, name: str, request: Body, deadline: Deadline) -> Any:
        return self._channel.call(_METHODS[name], request, deadline)

    def register(
        self, member: membership_pb2.Member, replace: bool, deadline: Deadline
    ) -> membership_pb2.RegisterResponse:
        """Become a member."""
        request = membership_pb2.RegisterRequest(
            member=member, protocol=PROTOCOL, replace=replace, session=self._session
        )
        return cast(membership_pb2.RegisterResponse, self._call("Register", request, deadline))

    def renew_lease(
        self,
        name: str,
        incarnation: int,
        deadline: Deadline,
        openers: Mapping[tuple[str, int], int] | None = None,
        wait_s: float = 0.0,
        known: membership_pb2.RenewLeaseResponse | None = None,
    ) -> membership_pb2.RenewLeaseResponse:
        """Send a heartbeat; return the state that members watch.

        Args:
            name: Name of this process.
            incarnation: Its incarnation.
            deadline: For the answer.
            openers: Number of contexts that each process has open here, by name and incarnation.
            wait_s: How long the coordinator may delay the response until the state changes.
            known: The state that this process has.
        """
        openers = openers or {}
        known = known or membership_pb2.RenewLeaseResponse()
        request = membership_pb2.RenewLeaseRequest(
            name=name,
            incarnation=incarnation,
            open_contexts=sum(openers.values()),
            context_counts=openers.values(),
            wait_s=wait_s,
            generation=known.generation,
            shard_epoch=known.shard_epoch,
            checkpoint_request=known.checkpoint_request,
            reshard=known.reshard,
        )
        for opener, of in openers:
            request.context_openers.add(name=opener, incarnation=of)
        return cast(membership_pb2.RenewLeaseResponse, self._call("RenewLease", request, deadline))

    def leave(self, name: str, incarnation: int, deadline: Deadline) -> None:
        """End the membership."""
        self._call(
            "Leave", membership_pb2.LeaveRequest(name=name, incarnation=incarnation), deadline
        )

    def join_round(
        self,
        name: str,
        incarnation: int,
        after_generation: int,
        deadline: Deadline,
        job: str = "",
    ) -> rendezvous_pb2.JoinRoundResponse:
        """Wait for a rank in a new generation."""
        request = rendezvous_pb2.JoinRoundRequest(
            name=name, incarnation=incarnation, after_generation=after_generation, job=job
        )
        return cast(rendezvous_pb2.JoinRoundResponse, self._call("JoinRound", request, deadline))

    def put_key(self, generation: int, key: str, value: bytes, deadline: Deadline) -> None:
        """Publish a value to the trainers of a generation."""
        request = rendezvous_pb2.PutKeyRequest(generation=generation, key=key, value=value)
        self._call("PutKey", request, deadline)

    def get_key(self, generation: int, key: str, deadline: Deadline) -> bytes:
        """Wait for a value of a generation."""
        request = rendezvous_pb2.GetKeyRequest(generation=generation, key=key)
        response: rendezvous_pb2.GetKeyResponse = self._call("GetKey", request, deadline)
        return response.value

    def create_table(self, spec: table_pb2.TableSpec, deadline: Deadline) -> bool:
        """Add a table to the catalogue; return False if an equal one exists."""
        request = table_pb2.CreateTableRequest(spec=spec)
        response: table_pb2.CreateTableResponse = self._call("CreateTable", request, deadline)
        return response.created

    def describe_table(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Read a table's specification."""
        request = table_pb2.DescribeTableRequest(name=name)
        response: table_pb2.DescribeTableResponse = self._call("DescribeTable", request, deadline)
        return response.spec

    def list_tables(self, deadline: Deadline) -> list[table_pb2.TableSpec]:
        """Read the catalogue, all pages of it."""

        def fetch(token: str) -> tuple[Iterable[table_pb2.TableSpec], str]:
            request = table_pb2.ListTablesRequest(page_token=token)
            page: table_pb2.ListTablesResponse = self._call("ListTables", request, deadline)
            return page.specs, page.next_page_token

        return all_pages(fetch)

    def get_shard_map(self, deadline: Deadline) -> table_pb2.ShardMap:
        """Wait for the parameter servers and return the shard map."""
        response: table_pb2.GetShardMapResponse = self._call(
            "GetShardMap", table_pb2.GetShardMapRequest(), deadline
        )
        return response.map

    def scale_parameter_servers(
        self, count: int, wait_s: float, deadline: Deadline
    ) -> reshard_pb2.Reshard:
        """Start to change the number of parameter servers."""
        request = reshard_pb2.ScaleParameterServersRequest(parameter_servers=count, wait_s=wait_s)
        response: reshard_pb2.ScaleParameterServersResponse = self._call(
            "ScaleParameterServers", request, deadline
        )
        return response.reshard

    def get_reshard(self, deadline: Deadline) -> reshard_pb2.Reshard:
        """Read the state of the newest reshard."""
        response: reshard_pb2.GetReshardResponse = self._call(
            "GetReshard", reshard_pb2.GetReshardRequest(), deadline
        )
        return response.reshard

    def report_move(
        self, request: reshard_pb2.ReportMoveRequest, deadline: Deadline
    ) -> reshard_pb2.Reshard:
        """Report how far this server is with a reshard, and wait for a change."""
        request.error = shortened(request.error)
        response: reshard_pb2.ReportMoveResponse = self._call("ReportMove", request, deadline)
        return response.reshard

    def take_shard(
        self, request: data_pb2.TakeShardRequest, deadline: Deadline
    ) -> data_pb2.TakeShardResponse:
        """Wait for a shard of a data set."""
        return cast(data_pb2.TakeShardResponse, self._call("TakeShard", request, deadline))

    def get_data_position(self, dataset: str, deadline: Deadline) -> bytes:
        """Read the position in a data set."""
        request = data_pb2.GetDataPositionRequest(dataset=dataset)
        response: data_pb2.GetDataPositionResponse = self._call(
            "GetDataPosition", request, deadline
        )
        return response.position

    def set_data_position(self, dataset: str, position: bytes, deadline: Deadline) -> None:
        """Reset a data set to an earlier position."""
        request = data_pb2.SetDataPositionRequest(dataset=dataset, position=position)
        self._call("SetDataPosition", request, deadline)

    def report_progress(
        self, name: str, incarnation: int, progress: status_pb2.Progress, deadline: Deadline
    ) -> None:
        """Report the progress of this trainer."""
        request = status_pb2.ReportProgressRequest(
            name=name, incarnation=incarnation, progress=progress
        )
        self._call("ReportProgress", request, deadline)

    def report_result(
        self, generation: int, figures: dict[str, float], deadline: Deadline, job: str = ""
    ) -> None:
        """Report the results of a run, and that its job is done."""
        request = status_pb2.ReportResultRequest(generation=generation, figures=figures, job=job)
        self._call("ReportResult", request, deadline)

    def request_checkpoint(self, deadline: Deadline) -> int:
        """Ask the trainers for a checkpoint; return the number of the request."""
        request = status_pb2.RequestCheckpointRequest()
        response: status_pb2.RequestCheckpointResponse = self._call(
            "RequestCheckpoint", request, deadline
        )
        return response.request

    def report_checkpoint(
        self, name: str, incarnation: int, checkpoint: status_pb2.Checkpoint, deadline: Deadline
    ) -> None:
        """Report a checkpoint that was written, or the error."""
        checkpoint.error = shortened(checkpoint.error)
        request = status_pb2.ReportCheckpointRequest(
            name=name, incarnation=incarnation, checkpoint=checkpoint
        )
        self._call("ReportCheckpoint", request, deadline)

    def issue_tickets(
        self, audiences: Sequence[str], deadline: Deadline
    ) -> list[tuple[bytes, float]] | None:
        """Return tickets for members, each with its lifetime; empty for an unknown name.

        None stands for a cluster that needs none.
        """
        request = ticket_pb2.IssueTicketsRequest(audiences=audiences)
        response: ticket_pb2.IssueTicketsResponse = self._call("IssueTickets", request, deadline)
        if response.is_open:
            return None
        return [(ticket.data, ticket.ttl_s) for ticket in response.tickets]

    def check_workers(self, workers: Sequence[tuple[str, int]], deadline: Deadline) -> list[bool]:
        """Return for each process, by name and incarnation, whether it is or was a member."""
        request = ticket_pb2.CheckWorkersRequest()
        for name, incarnation in workers:
            request.workers.add(name=name, incarnation=incarnation)
        response: ticket_pb2.CheckWorkersResponse = self._call("CheckWorkers", request, deadline)
        return list(response.registered)

    def get_status(self, deadline: Deadline) -> status_pb2.GetStatusResponse:
        """Read the status of the whole cluster, with all its members."""
        first: status_pb2.GetStatusResponse | None = None

        def fetch(token: str) -> tuple[Iterable[status_pb2.MemberStatus], str]:
            nonlocal first
            request = status_pb2.GetStatusRequest(page_token=token)
            page: status_pb2.GetStatusResponse = self._call("GetStatus", request, deadline)
            first = first or page
            return () if page is first else page.members, page.next_page_token

        others = all_pages(fetch)
        assert first is not None
        first.members.extend(others)
        first.next_page_token = ""
        return first


T = TypeVar("T")

# Longest time for one address while there are others.
_TURN_S = 2.0


@final
class FailoverCoordinator:
    """The coordinator at one of several addresses: the one that answered last, else each in turn.

    Args:
        channels: One for each address.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = list(channels)
        self._coordinators = [Coordinator(channel) for channel in channels]
        self._at = 0

    @property
    def address(self) -> str:
        """The address that answered last."""
        return self._coordinators[self._at].address

    def get_shard_map(self, deadline: Deadline) -> table_pb2.ShardMap:
        """Wait for the parameter servers and return the shard map."""
        return self._ask(Coordinator.get_shard_map, deadline)

    def describe_table(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Read a table's specification."""
        return self._ask(lambda one, until: one.describe_table(name, until), deadline)

    def list_tables(self, deadline: Deadline) -> list[table_pb2.TableSpec]:
        """Read the catalogue."""
        return self._ask(Coordinator.list_tables, deadline)

    def issue_tickets(
        self, audiences: Sequence[str], deadline: Deadline
    ) -> list[tuple[bytes, float]] | None:
        """Return tickets for members, as `Coordinator.issue_tickets`."""
        return self._ask(lambda one, until: one.issue_tickets(audiences, until), deadline)

    def _ask(self, call: Callable[[Coordinator, Deadline], T], deadline: Deadline) -> T:
        if len(self._coordinators) == 1:
            return call(self._coordinators[0], deadline)
        while True:
            at = self._at
            turn = Deadline.after(min(_TURN_S, deadline.remaining_s()))
            try:
                return call(self._coordinators[at], turn)
            except (DeadlineExceeded, Unreachable):
                if deadline.remaining_s() <= 0:
                    raise
            self._at = (at + 1) % len(self._coordinators)

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            channel.close()
