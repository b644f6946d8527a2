"""What a process sends to an address that another member supplied is useless anywhere else."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.coordinator.v1 import status_pb2, ticket_pb2
from gradmesh.protos.errors import MeshError, TicketRejected
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.rpcs import ROLES
from gradmesh.protos.ticket import SESSION_METADATA, TICKET_METADATA
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.rpc import collective
from gradmesh.sdk.rpc.ids import WorkerId
from gradmesh.sdk.transport.deadline import Deadline
from tests.security.roles import call_raw, role_files, token_of


class RecordingServer(grpc.GenericRpcHandler):
    """Answers nothing, and records all that callers send: metadata, messages, bytes of lanes."""

    def __init__(self) -> None:
        self.metadata: list[tuple[str, str | bytes]] = []
        self.data: list[bytes] = []
        self.methods: set[str] = set()
        self._lane = socket.create_server(("127.0.0.1", 0))
        self._lane_thread = threading.Thread(target=self._record_lanes, daemon=True)
        self._lane_thread.start()
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def service(self, details):
        """Serve any method."""
        name = details.method.rpartition("/")[2]
        self.methods.add(name)
        self.metadata += details.invocation_metadata
        if name == "Exchange":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        answer = self._offer_lane if name == "OpenLane" else self._refuse
        return grpc.unary_unary_rpc_method_handler(answer)

    def _refuse(self, data, context):
        self.data.append(data)
        context.abort(grpc.StatusCode.NOT_FOUND, "recorded")

    def _stream(self, requests, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "recorded")
        yield from ()

    def _offer_lane(self, data, context):
        self.data.append(data)
        port = self._lane.getsockname()[1]
        offer = pb.OpenLaneResponse(kind=pb.LANE_KIND_TCP, address=str(port), secret=bytes(32))
        return offer.SerializeToString()

    def _record_lanes(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._lane.accept()
                with sock:
                    sock.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        while data := sock.recv(65536):
                            self.data.append(data)

    def close(self) -> None:
        self._server.stop(0).wait(5)
        self._pool.shutdown()
        self._lane.shutdown(socket.SHUT_RDWR)
        self._lane.close()
        self._lane_thread.join(5)

    def recorded(self) -> bytes:
        """Return all bytes that were received."""
        texts = [v if isinstance(v, bytes) else v.encode() for pair in self.metadata for v in pair]
        return b"\n".join([*texts, *self.data])


@pytest.fixture
def roles(tmp_path):
    return role_files(tmp_path)


@pytest.fixture
def cluster(make_cluster, roles):
    return make_cluster(parameter_servers=1, security=roles["parameter-server"])


@pytest.fixture
def fake(cluster, roles):
    """A recording server that a client has registered as its own address."""
    server = RecordingServer()
    mesh = cluster.connect("a-fake", security=roles["client"], address=server.address)
    yield server
    mesh.close()
    server.close()


@pytest.fixture
def worker(cluster, roles):
    node = gm.rpc.init(
        "worker-0", coordinator=cluster.address, security=roles["worker"], install=False
    )
    yield node
    node.leave(1.0)


def use_everything(worker, address) -> None:
    """Have a worker call the fake server in every way that members call each other."""
    agent, servers = worker.agent, worker.mesh.connection.servers
    fake = agent.caller.find("a-fake")
    me = agent.me
    with pytest.raises(MeshError):
        collective.gather(agent, None, ["a-fake", "worker-0"], 1.0)
    with pytest.raises(MeshError):
        agent.caller.call("a-fake", "f", (1,), {}, 2.0).wait()
    rref = agent.caller.create("a-fake", "f", (), {}, 2.0)
    with pytest.raises(MeshError):
        rref.to_here(2.0)
    for name, request in (
        ("DeleteRef", pb.DeleteRefRequest()),
        ("AcceptFork", pb.AcceptForkRequest()),
        ("Deliver", Frame(pb.DeliverRequest(caller=me.proto(), worker=me.proto()), [])),
        ("ReleaseContext", pb.ReleaseContextRequest()),
    ):
        agent.control.deliver(name, WorkerId(fake.name, fake.incarnation), request)
    lookup = Frame(parameter_server_pb2.LookupRequest(tables=["user"]), [np.arange(3)])
    streams = replace(worker._dial, lane="stream")
    for dial in (servers.dial, streams):
        with dial(address, "a-fake") as channel, pytest.raises(MeshError):
            channel.call(METHODS["Lookup"], lookup, Deadline.after(2.0))


def test_nothing_that_a_member_sends_to_another_works_elsewhere(cluster, fake, worker):
    use_everything(worker, fake.address)

    assert {"Call", "CreateRef", "OpenLane", "Exchange", "DeleteRef", "Lookup"} <= fake.methods
    recorded = fake.recorded()
    for role in ROLES:
        assert token_of(role).encode() not in recorded
    assert b"Bearer" not in recorded
    assert worker.mesh.connection.identity.session not in recorded
    assert SESSION_METADATA not in dict(fake.metadata)
    tickets = {value for key, value in fake.metadata if key == TICKET_METADATA}
    assert tickets
    for ticket in tickets:
        for shown in (((TICKET_METADATA, ticket),), ((SESSION_METADATA, ticket),)):
            for address in (cluster.servers[0].server.address, worker.server.address):
                with pytest.raises(TicketRejected):
                    call_raw(address, "Describe", pb.DescribeRequest(), shown)
            with pytest.raises(PermissionError):
                call_raw(cluster.address, "GetStatus", status_pb2.GetStatusRequest(), shown)
            request = ticket_pb2.IssueTicketsRequest(audiences=["ps-0"])
            with pytest.raises(PermissionError):
                call_raw(cluster.address, "IssueTickets", request, shown)
