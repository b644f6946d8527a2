"""Joining a mesh."""

import time
import uuid
from collections.abc import Callable

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.limits import check_name
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.cluster.lease import Lease
from gradmesh.sdk.cluster.membership import ROLES, Role
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process.network import LaneChoice, SecurityConfig
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics


def connect(
    coordinator: str,
    *,
    name: str | None = None,
    role: Role = "client",
    address: str = "",
    incarnation: int | None = None,
    rank: int | None = None,
    world_size: int = 0,
    replace: bool = False,
    security: SecurityConfig | None = None,
    metrics: RpcMetrics | None = None,
    lane: LaneChoice = "auto",
    table_metrics: TableMetrics | None = None,
    max_frame_bytes: int = limits.MAX_FRAME_BYTES,
    timeout_s: float = 30.0,
    on_lost: Callable[[], object] = lambda: None,
) -> Mesh:
    """Join a mesh.

    Args:
        coordinator: Address of the coordinator, "host:port".
        name: Name of this process, unique in the mesh; generated for clients by default.
        role: Role of this process.
        address: Where other processes reach this one; empty for clients, which serve nothing.
        incarnation: Greater than that of any former process of this name; the time by default.
        rank: Rank among the workers, if it has one.
        world_size: Number of workers that wait for each other at their start; 0 for none.
        replace: Whether the former holder of the name is known to be gone.
        security: Certificates and token.
        metrics: Counts calls.
        lane: Lane of hot calls: shared memory, TCP, the best of them, or gRPC alone.
        table_metrics: Counts lookups and pushes.
        max_frame_bytes: Largest message to a server, within its limit; bigger ones are cut.
        timeout_s: Longest time to reach the coordinator, and the default of every call.
        on_lost: Called once if another process takes this one's name.

    Raises:
        Unreachable: No coordinator answered in time.
        NameTaken: A live process holds the name.
        Unauthenticated: The token is missing or wrong.
    """
    if role not in ROLES:
        raise InvalidRequest(f"no role {role!r}; there are {', '.join(ROLES)}", role=role)
    chosen = check_name("worker", name or f"client-{uuid.uuid4().hex[:8]}")
    member = membership_pb2.Member(
        name=chosen,
        role=ROLES[role],
        address=address,
        incarnation=time.time_ns() if incarnation is None else incarnation,
        rank=rank,
        world_size=world_size,
    )
    metrics = metrics or RpcMetrics("client")
    dial = Dialer(security=security, metrics=metrics, lane=lane, max_frame_bytes=max_frame_bytes)
    channel = dial.coordinator(coordinator)
    client = Coordinator(channel)
    lease = Lease(client, member, on_lost=on_lost)
    try:
        lease.start(replace=replace, deadline=Deadline.after(timeout_s))
    except BaseException:
        channel.close()
        raise

    servers = ParameterServers(
        client,
        dial,
        max_frame_bytes=max_frame_bytes,
        owner=worker_pb2.WorkerId(name=member.name, incarnation=member.incarnation),
    )
    return Mesh(channel, client, lease, servers, table_metrics or TableMetrics(), timeout_s)
