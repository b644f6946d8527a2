"""The status of a cluster, for operators."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.limits import natural_key
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.cluster.membership import role_name
from gradmesh.sdk.process.local_token import with_local_token
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.sdk.transport.deadline import Deadline


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One process that has joined the cluster.

    Attributes:
        name: Unique in the cluster.
        role: `parameter-server`, `trainer` or `client`.
        address: Where it serves; empty for a client.
        incarnation: Grows with each start of the process.
        silence_s: Seconds since its last heartbeat.
        step: Steps it has done; None for members that do not train.
        open_contexts: Contexts of distributed autograd that are open on it, of all openers.
    """

    name: str
    role: str
    address: str
    incarnation: int
    silence_s: float
    step: int | None = None
    open_contexts: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContexts:
    """The contexts that one process has open.

    Attributes:
        worker: Its name.
        incarnation: Its incarnation.
        alive: Whether it is a member; contexts of one that is not are about to be released.
        open: How many are open on each member, by name.
    """

    worker: str
    incarnation: int
    alive: bool
    open: Mapping[str, int]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The status of a whole cluster.

    Attributes:
        version: What the coordinator runs.
        uptime_s: Seconds since the coordinator started.
        members: By name.
        tables: Names of the embedding tables.
        generation: Generation of the trainers; 0 before the first.
        step: Steps that the slowest trainer has done.
        total_steps: Steps of the run; 0 before it begins.
        loss: Newest loss of the leading trainer; None before the first step.
        samples_per_s: Of all trainers together.
        bytes_moved: Between trainers, and between trainers and parameter servers.
        result: Results of the newest finished run; empty before.
        lag_steps: Steps between the leading trainer and the slowest.
        contexts: Open contexts by the worker that opened them, as of the last heartbeats.
        checkpoint: The newest checkpoint of the run, or why there is none; None before the first.
        warnings: What an operator should look at.
    """

    version: str = ""
    uptime_s: float = 0.0
    members: tuple[MemberStatus, ...] = ()
    tables: tuple[str, ...] = ()
    generation: int = 0
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    bytes_moved: int = 0
    result: Mapping[str, float] = field(default_factory=dict)
    lag_steps: int = 0
    contexts: tuple[WorkerContexts, ...] = ()
    checkpoint: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def fetch(address: str, security: SecurityConfig, timeout_s: float) -> ClusterStatus:
    """Ask a coordinator for the status of its cluster.

    Raises:
        MeshError: It could not be reached, or refused.
    """
    with Dialer(security=with_local_token(security, address)).coordinator(address) as channel:
        return from_message(Coordinator(channel).get_status(Deadline.after(timeout_s)))


def from_message(answer: status_pb2.GetStatusResponse) -> ClusterStatus:
    """Return the status from the coordinator's answer."""
    reports = [m.progress for m in answer.members if m.HasField("progress")]
    # A restarted trainer may not have joined the others' generation yet.
    current = [p for p in reports if p.generation == max(r.generation for r in reports)]
    leader = max(current, key=lambda p: p.step, default=None)
    return ClusterStatus(
        version=answer.version,
        uptime_s=answer.uptime_s,
        members=tuple(_member(m) for m in answer.members),
        tables=tuple(answer.tables),
        generation=answer.generation,
        step=min((p.step for p in current), default=0),
        total_steps=max((p.total_steps for p in current), default=0),
        loss=leader.loss if leader is not None and leader.step > 0 else None,
        samples_per_s=leader.samples_per_s if leader is not None else 0.0,
        bytes_moved=sum(p.bytes_moved for p in reports),
        result=dict(answer.result),
        lag_steps=max((p.step for p in current), default=0)
        - min((p.step for p in current), default=0),
        contexts=_contexts(answer.members),
        checkpoint=_checkpoint(answer.checkpoint) if answer.HasField("checkpoint") else None,
        warnings=tuple(answer.warnings),
    )


def _contexts(members: Iterable[status_pb2.MemberStatus]) -> tuple[WorkerContexts, ...]:
    """Return the contexts by opener, from those that each member holds."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    alive = set()
    for entry in members:
        alive.add((entry.member.name, entry.member.incarnation))
        for held in entry.contexts:
            worker = held.opener.name, held.opener.incarnation
            found.setdefault(worker, {})[entry.member.name] = held.count
    workers = sorted(found, key=lambda worker: (natural_key(worker[0]), worker[1]))
    return tuple(
        WorkerContexts(
            worker=name,
            incarnation=incarnation,
            alive=(name, incarnation) in alive,
            open=found[name, incarnation],
        )
        for name, incarnation in workers
    )


def _checkpoint(message: status_pb2.Checkpoint) -> dict[str, Any]:
    names = ("path", "step", "rows", "bytes", "took_s", "error", "age_s")
    return {name: getattr(message, name) for name in names}


def _member(message: status_pb2.MemberStatus) -> MemberStatus:
    member = message.member
    return MemberStatus(
        name=member.name,
        role=role_name(member.role),
        address=member.address,
        incarnation=member.incarnation,
        silence_s=message.silence_s,
        step=message.progress.step if message.HasField("progress") else None,
        open_contexts=message.open_contexts,
    )
