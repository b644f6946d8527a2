"""Shutting rpc down on a worker."""

import logging

from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.collective import gather
from gradmesh.sdk.rpc.current import RefLeak, current_agent
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

# How long the last answers may take to leave.
_LAST_S = 5.0

# How long a graceful shutdown waits for the others.
_GRACE_S = 600.0


def shutdown(graceful: bool = True, timeout_s: float | None = None) -> None:
    """Shut rpc down in this process.

    A graceful shutdown serves until all workers of the world shut down too and no call is under way
    anywhere, then deletes the references. A call has ended when its reply has arrived; its future
    keeps the result. A shutdown that is not graceful fails the calls under way.

    Args:
        graceful: Whether to wait for the other workers.
        timeout_s: How long; ten minutes by default.

    Raises:
        RpcNotRunning: Rpc is not running here.
        DeadlineExceeded: Calls did not end, or workers did not shut down, in time; rpc is shut down
            here all the same.
        RefLeak: References were left, and `strict_refs` was set.
    """
    close(current_agent(), graceful, timeout_s)


def close(agent: Agent, graceful: bool = True, timeout_s: float | None = None) -> None:
    """Shut one agent down, as `shutdown` does."""
    deadline = Deadline.within(timeout_s, _GRACE_S)
    try:
        if graceful:
            _await_quiet(agent, deadline)
            agent.rrefs.users.delete_all()
            if not agent.control.flush(deadline):
                raise DeadlineExceeded(
                    f"{agent.name}: owners did not receive all messages about references"
                )
            _meet(agent, deadline, None)
            _report_leaks(agent)
            agent.deferred.wait_idle(Deadline.after(min(_LAST_S, deadline.remaining_s())))
    finally:
        agent.leave(_LAST_S if graceful else 0.0)


def _await_quiet(agent: Agent, deadline: Deadline) -> None:
    """Wait until no call is under way in the whole world.

    A busy worker may call an idle one. So all workers exchange how many calls they have made and
    served, until two rounds in a row are equal.
    """
    before: object = None
    while True:
        _await_idle(agent, deadline)
        collectives = agent.collectives
        counts = [
            agent.outstanding.made - collectives.made,
            agent.executor.served - collectives.served,
        ]
        now = _meet(agent, deadline, counts)
        if now == before:
            return
        before = now


def _await_idle(agent: Agent, deadline: Deadline) -> None:
    # A reply that has arrived completes its call, though no thread has read its future.
    if not agent.outstanding.drain(deadline):
        raise DeadlineExceeded(f"{agent.name}: {agent.outstanding.under_way()}")
    # Collectives that wait for this worker get their reply below.
    quiet = agent.deferred.wait_idle(deadline, but=agent.collectives.waiting)
    if not quiet or not agent.executor.wait_idle(deadline):
        raise DeadlineExceeded(f"{agent.name}: calls of others still run here")


def _meet(agent: Agent, deadline: Deadline, value: object) -> object:
    """Exchange a value with the world, if this worker belongs to one."""
    if not agent.world:
        return value
    return gather(agent, value, agent.world, max(deadline.remaining_s(), 1e-3))


def _report_leaks(agent: Agent) -> None:
    left = agent.rrefs.owners.report()
    if not left:
        return
    text = f"{agent.name} ends with {len(left)} values that others still refer to: " + "; ".join(
        left[:20]
    )
    if agent.strict_refs:
        raise RefLeak(text)
    _log.warning("references leaked", extra={"references": left[:20], "count": len(left)})
