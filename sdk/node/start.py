"""Initialize rpc: make a user's process a worker."""

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import TypeAlias

from prometheus_client import CollectorRegistry

from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.protos.limits import check_name
from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig
from gradmesh.sdk.process.process import ProcessConfig, freeze_objects
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import Limits, RetryPolicy, Timeouts

_log = logging.getLogger(__name__)

OnLost: TypeAlias = Callable[[], object]


def init(
    name: str,
    *,
    coordinator: str,
    rank: int | None = None,
    world_size: int | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    replace: bool = False,
    strict_refs: bool = False,
    security: SecurityConfig | None = None,
    transport: TransportConfig | None = None,
    timeouts: Timeouts | None = None,
    limits: Limits | None = None,
    registry: CollectorRegistry | None = None,
    on_lost: OnLost = lambda: None,
    install: bool = True,
) -> Node:
    """Initialize rpc: make this process a worker that can call others and be called.

    With `world_size`, this waits until that many workers have joined.
    Without it, the worker joins and leaves on its own.

    Args:
        name: Name of this worker, unique in the mesh.
        coordinator: Address of the coordinator, "host:port".
        rank: Rank of this worker, by which others may call it; needed with `world_size`.
        world_size: Number of workers that start, and shut down, together.
        listen: Address to serve on; port 0 takes a free one.
        advertise: Address at which others reach this worker, if it is not the one it listens on.
        replace: Whether a former process of the name is known to be gone.
        strict_refs: Whether references left at a graceful shutdown are an error.
        security: Certificates and token.
        transport: Lanes to use and to offer.
        timeouts: How long to look for the coordinator and wait for the others, and deadlines of
            calls that set none.
        limits: Calls of others that run at once, and the size of messages.
        registry: Where metrics are exported; None for nowhere.
        on_lost: Called once if another process takes this one's name.
        install: Whether `gm.rpc_sync` and the other functions of `gm.rpc` use this worker; a
            process has one that they use.

    Raises:
        RpcNotRunning: The process is a worker already.
        NameTaken: A live process holds the name.
        InvalidRequest: Name, rank or world size is invalid, or another worker has the rank.
        DeadlineExceeded: Some workers did not join in time; the message names their ranks.
        Unreachable: No coordinator answered in time.
    """
    _check(name, rank, world_size)
    timeouts, limits = timeouts or Timeouts(), limits or Limits()
    deadline = Deadline.after(timeouts.join_s)
    config = MemberConfig(
        name=name,
        listen=listen,
        advertise=advertise,
        coordinator=coordinator,
        replace=replace,
    )
    for problem in config.problems():
        raise InvalidRequest(f"{problem.key} {problem.text}")
    process = ProcessConfig(
        security=security or SecurityConfig(), transport=transport or TransportConfig()
    )
    node = Node(
        config,
        "worker",
        process,
        registry,
        limits=limits,
        timeout_s=timeouts.call_s,
        rank=rank,
        is_current=install,
    )
    agent = node.agent
    agent.strict_refs = strict_refs
    try:
        server = node.serve()
        left = replace_fields(timeouts, join_s=max(deadline.remaining_s(), 0.1))
        node.join(server, world_size=world_size or 0, timeouts=left, on_lost=on_lost)
        agent.world = _await_world(agent, rank, world_size, deadline)
    except BaseException:
        node.leave(0)
        raise
    if install:
        freeze_objects()
        node.before_leave(gc.unfreeze)
    _log.info("worker joined", extra={"worker": name, "address": server.address})
    return node


def _check(name: str, rank: int | None, world_size: int | None) -> None:
    check_name("worker", name)
    if rank is not None and (not isinstance(rank, int) or rank < 0):
        raise InvalidRequest(f"a rank must be an integer of 0 or more, not {rank!r}")
    if world_size is not None and (world_size < 1 or rank is None or rank >= world_size):
        raise InvalidRequest(
            f"a world of {world_size} needs ranks 0 to {world_size - 1}, not {rank!r}",
            world_size=world_size,
        )


def _await_world(
    agent: Agent, rank: int | None, world_size: int | None, deadline: Deadline
) -> tuple[str, ...]:
    """Wait until all workers of the world have joined; return their names.

    Raises:
        InvalidRequest: Another worker has the same rank, or another world size.
        DeadlineExceeded: Some did not join in time.
    """
    missing: list[int] | None = None
    for pause_s in RetryPolicy(max_s=0.3).pauses():
        try:
            members = agent.directory.refresh(deadline)
        except DeadlineExceeded:
            if missing is None:
                raise
            # The deadline passed during this request: report the workers that were missing before
            # it.
            raise _missing_workers(agent.name, missing) from None
        workers = [m for m in members.values() if m.role == membership_pb2.ROLE_WORKER]
        for one in workers:
            _check_other(agent.name, rank, world_size, one)
        world = [m for m in workers if world_size and m.world_size == world_size]
        if len(world) >= (world_size or 0):
            return tuple(sorted(m.name for m in world))
        missing = sorted(set(range(world_size or 0)) - {m.rank for m in world})
        if deadline.remaining_s() < pause_s:
            raise _missing_workers(agent.name, missing)
        time.sleep(pause_s)
    raise AssertionError("pauses never end")


def _missing_workers(name: str, missing: list[int]) -> DeadlineExceeded:
    ranks = ", ".join(map(str, missing))
    return DeadlineExceeded(
        f"{name!r} timed out waiting for the workers of rank {ranks}", missing=missing
    )


def _check_other(
    name: str, rank: int | None, world_size: int | None, other: membership_pb2.Member
) -> None:
    if other.name == name:
        return
    if rank is not None and other.HasField("rank") and other.rank == rank:
        raise InvalidRequest(
            f"{name!r} and {other.name!r} both have rank {rank}", rank=rank, worker=other.name
        )
    if world_size and other.world_size not in (0, world_size):
        raise InvalidRequest(
            f"{name!r} expects {world_size} workers, {other.name!r} expects {other.world_size}",
            worker=other.name,
        )
