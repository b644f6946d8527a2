"""Barrier and all-gather over rpc."""

from collections.abc import Iterable
from typing import Any

from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.builtin import GATHER
from gradmesh.sdk.rpc.current import current_agent

# The one who keeps the table says who is missing; that is better to know than one's own deadline.
_MARGIN_S = 5.0


def all_gather(
    value: Any, names: Iterable[str] | None = None, timeout_s: float | None = None
) -> dict[str, Any]:
    """Bring a value to a meeting of workers; return the values of all by name.

    Args:
        value: Anything that can be sent.
        names: Who meets, this worker among them; by default all that began together with it, or
            else all workers that are there now. The same on each of them.
        timeout_s: How long the first waits for the last; the default of rpc if left out.

    Raises:
        DeadlineExceeded: Somebody did not come; the message says who.
    """
    return gather(current_agent(), value, names, timeout_s)


def barrier(names: Iterable[str] | None = None, timeout_s: float | None = None) -> None:
    """Wait until all have come to the same point.

    Args:
        names: Who waits for each other; as in `all_gather`.
        timeout_s: As in `all_gather`.

    Raises:
        DeadlineExceeded: Somebody did not come; the message says who.
    """
    all_gather(None, names, timeout_s)


def gather(
    agent: Agent, value: Any, names: Iterable[str] | None, timeout_s: float | None
) -> dict[str, Any]:
    """Meet through a certain agent."""
    limit_s = agent.caller.deadline(timeout_s).remaining_s()
    meeting = tuple(sorted(set(names))) if names is not None else _everybody(agent)
    if agent.name not in meeting:
        raise InvalidRequest(
            f"{agent.name!r} is not among those who meet: {', '.join(meeting)}", worker=agent.name
        )
    count = agent.gathers.next(meeting)
    args = (list(meeting), count, agent.name, value, limit_s)
    met: dict[str, Any] = agent.caller.start(
        meeting[0], GATHER, args, {}, limit_s + _MARGIN_S
    ).finish()
    return met


def _everybody(agent: Agent) -> tuple[str, ...]:
    if agent.world:
        return agent.world
    members = agent.peers.refresh(agent.caller.deadline(None))
    workers = [m.name for m in members.values() if m.role == membership_pb2.ROLE_WORKER]
    return tuple(sorted({*workers, agent.name}))
