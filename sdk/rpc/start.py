"""How a user's own process becomes a worker."""

import gc
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from prometheus_client import CollectorRegistry

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.protos.naming import check_name
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.autograd.contexts import CONTEXTS
from gradmesh.sdk.autograd.station import Station
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.nn import remote_module as remote_module
from gradmesh.sdk.optim import owner as owner
from gradmesh.sdk.optim.pace import PaceMetrics
from gradmesh.sdk.owner.registry import REGISTRY, Registry
from gradmesh.sdk.owner.servicer import ContextHolder, NoContexts, OwnerServicer
from gradmesh.sdk.process.memory import spare_what_stays
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.transport import TransportConfig
from gradmesh.sdk.rpc import builtin as builtin
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.peers import Dial
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.retry import RetryPolicy
from gradmesh.sdk.transport.server import Server

_log = logging.getLogger(__name__)

_OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]

OnLost: TypeAlias = Callable[[], object]


def dialer(
    *,
    security: SecurityConfig | None = None,
    transport: TransportConfig | None = None,
    metrics: RpcMetrics | None = None,
    max_frame_bytes: int = limits.MAX_FRAME_BYTES,
) -> Dial:
    """Return what makes the channels of an agent."""
    metrics = metrics or RpcMetrics("client")
    lane = (transport or TransportConfig()).lane

    def dial(address: str, name: str) -> Channel:
        return Channel(
            address,
            name,
            security=security,
            metrics=metrics,
            patience_s=2.0,
            max_frame_bytes=max_frame_bytes,
            lane=lane,
        )

    return dial


def init(
    name: str,
    *,
    coordinator: str,
    rank: int | None = None,
    world_size: int | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    timeout_s: float = 60.0,
    join_timeout_s: float = 60.0,
    threads: int = 16,
    strict_refs: bool = False,
    replace: bool = False,
    security: SecurityConfig | None = None,
    transport: TransportConfig | None = None,
    contexts: ContextHolder | None = None,
    registry: CollectorRegistry | None = None,
    functions: Registry = REGISTRY,
    on_lost: OnLost = lambda: None,
    install: bool = True,
) -> Agent:
    """Make this process a worker: it can call others, and be called.

    With `world_size`, so many workers begin together: this returns when all are there. Without, the
    worker comes and goes by itself.

    Args:
        name: Of this worker, unique in the mesh.
        coordinator: Address of the coordinator, "host:port".
        rank: Place of this worker, by which others may call it; needed with `world_size`.
        world_size: How many workers begin, and end, together.
        listen: Address to serve on; port 0 takes a free one.
        advertise: Address that others reach it at, if it is not the one it listens on.
        timeout_s: Of calls that set none; 0 for no limit.
        join_timeout_s: How long to look for the coordinator and wait for the others.
        threads: Calls of others that run at once; more stand in line, unless somebody waits.
        strict_refs: Whether references left at a graceful shutdown are an error.
        replace: Whether a former process of the name is known to be gone.
        security: Certificates and token.
        transport: Which lanes are used and offered.
        contexts: What is kept for contexts of distributed autograd; by default those that calls
            are recorded in.
        registry: Where figures are shown.
        functions: What others may call; by default all that `@gm.remote` registered.
        on_lost: Called once if another process takes this one's name.
        install: Whether `gm.rpc_sync` and its like use this worker; a process has one such.

    Raises:
        RpcNotRunning: The process is a worker already.
        NameTaken: A live process holds the name.
        InvalidRequest: Name, rank and world size do not make sense, or another has the rank.
        DeadlineExceeded: Some of the others did not come; the message says who.
        Unreachable: No coordinator answered in time.
    """
    _check(name, rank, world_size, threads)
    deadline = Deadline.after(join_timeout_s)
    metrics = RpcMetrics("client", registry)
    agent = Agent(
        name,
        time.time_ns(),
        functions,
        dialer(security=security, transport=transport, metrics=metrics),
        rank=rank,
        timeout_s=timeout_s,
        threads=threads,
        inline=max(1, threads // 2),
    )
    agent.strict_refs = strict_refs
    # A bad default is better refused now.
    agent.caller.deadline(-2 if timeout_s in (None, -1) else timeout_s)
    if install:
        current.install(agent)
    # Calls are recorded process-wide, so it is the process's own worker that takes part.
    station = Station(agent) if install else None
    if registry is not None and station is not None:
        PaceMetrics(registry)
    if contexts is None:
        contexts = CONTEXTS if install else NoContexts()
    server: Server | None = None
    mesh: Mesh | None = None
    try:
        servicer = OwnerServicer(name, "worker", agent.me.incarnation, functions, contexts, agent)
        server = Server(
            {_OWNER: servicer, **(station.services if station is not None else {})},
            listen=listen,
            security=security,
            transport=transport,
            threads=threads,
            registry=registry,
        )
        server.start()
        mesh = connect(
            coordinator,
            name=name,
            role="worker",
            address=advertise or server.address,
            incarnation=agent.me.incarnation,
            rank=rank,
            world_size=world_size or 0,
            replace=replace,
            security=security,
            metrics=metrics,
            lane=(transport or TransportConfig()).lane,
            timeout_s=max(deadline.remaining_s(), 0.1),
            on_lost=on_lost,
        )
        agent.join(mesh)
        if station is not None:
            station.join(mesh)
            agent.before_close(station.close)
        agent.serve_with(server)
        agent.world = _await_world(agent, rank, world_size, deadline)
    except BaseException:
        if mesh is not None:
            mesh.close()
        if server is not None:
            server.drain(0)
        agent.close()
        raise
    if install:
        spare_what_stays()
        agent.before_close(gc.unfreeze)
    _log.info("worker joined", extra={"worker": name, "address": server.address})
    return agent


def _check(name: str, rank: int | None, world_size: int | None, threads: int) -> None:
    check_name("worker", name)
    if threads < 1:
        raise InvalidRequest(f"a worker needs at least 1 thread, not {threads}")
    if rank is not None and (not isinstance(rank, int) or rank < 0):
        raise InvalidRequest(f"a rank is a whole number from 0 on, not {rank!r}")
    if world_size is not None and (world_size < 1 or rank is None or rank >= world_size):
        raise InvalidRequest(
            f"a world of {world_size} needs ranks 0 to {world_size - 1}, not {rank!r}",
            world_size=world_size,
        )


def _await_world(
    agent: Agent, rank: int | None, world_size: int | None, deadline: Deadline
) -> tuple[str, ...]:
    """Wait until all workers that begin together are there; return their names.

    Raises:
        InvalidRequest: Another worker has our rank, or another idea of how many there are.
        DeadlineExceeded: Some did not come.
    """
    missing: list[int] | None = None
    for pause_s in RetryPolicy(max_s=0.3).pauses():
        try:
            members = agent.peers.refresh(deadline)
        except DeadlineExceeded:
            if missing is None:
                raise
            # Time was up while the coordinator was asked once more; who was missing is the news.
            raise _in_vain(agent.name, missing) from None
        workers = [m for m in members.values() if m.role == membership_pb2.ROLE_WORKER]
        for one in workers:
            _check_other(agent.name, rank, world_size, one)
        world = [m for m in workers if world_size and m.world_size == world_size]
        if len(world) >= (world_size or 0):
            return tuple(sorted(m.name for m in world))
        missing = sorted(set(range(world_size or 0)) - {m.rank for m in world})
        if deadline.remaining_s() < pause_s:
            raise _in_vain(agent.name, missing)
        time.sleep(pause_s)
    raise AssertionError("pauses never end")


def _in_vain(name: str, missing: list[int]) -> DeadlineExceeded:
    ranks = ", ".join(map(str, missing))
    return DeadlineExceeded(
        f"{name!r} waited in vain for the workers of rank {ranks}", missing=missing
    )


def _check_other(
    name: str, rank: int | None, world_size: int | None, other: membership_pb2.Member
) -> None:
    if other.name == name:
        return
    if rank is not None and other.HasField("rank") and other.rank == rank:
        raise InvalidRequest(
            f"{name!r} and {other.name!r} both want to be rank {rank}", rank=rank, worker=other.name
        )
    if world_size and other.world_size not in (0, world_size):
        raise InvalidRequest(
            f"{name!r} expects {world_size} workers, {other.name!r} expects {other.world_size}",
            worker=other.name,
        )
