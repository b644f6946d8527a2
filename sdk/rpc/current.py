"""Which agent the code of this process speaks through, and how deep in calls it is."""

import contextvars
import threading
from typing import TYPE_CHECKING

from gradmesh.sdk.rpc.errors import RpcNotRunning

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.agent import Agent

_lock = threading.Lock()  # guards _process_agent
_process_agent: "Agent | None" = None

here: contextvars.ContextVar["Agent | None"] = contextvars.ContextVar(
    "gradmesh_agent", default=None
)
"""The agent that runs the function of this thread; where there is none, the process's."""

depth: contextvars.ContextVar[int] = contextvars.ContextVar("gradmesh_depth", default=0)
"""How many calls wait for what this thread does."""


def current_agent() -> "Agent":
    """Return the agent of the running function, or of the process.

    Raises:
        RpcNotRunning: There is none, or it was shut down.
    """
    agent = here.get() or _process_agent
    if agent is None or agent.closed:
        raise RpcNotRunning("this process takes no part in rpc; call gm.rpc.init first")
    return agent


def install(agent: "Agent") -> None:
    """Make an agent the process's.

    Raises:
        RpcNotRunning: There is one already.
    """
    global _process_agent
    with _lock:
        if _process_agent is not None and not _process_agent.closed:
            raise RpcNotRunning(
                f"rpc runs here already, as {_process_agent.name!r}; call gm.rpc.shutdown first"
            )
        _process_agent = agent


def uninstall(agent: "Agent") -> None:
    """Take an agent back, if it is the process's."""
    global _process_agent
    with _lock:
        if _process_agent is agent:
            _process_agent = None
