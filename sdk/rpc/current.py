"""The agent that the code of this process uses, and the nesting depth of its calls."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gradmesh.base_error import GradmeshError
from gradmesh.sdk.future import Future, wait_all

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.agent import Agent

T = TypeVar("T")


class RpcNotRunning(RuntimeError, GradmeshError):
    """Rpc is not initialized in this process, was shut down, or is initialized twice."""


class RefLeak(RuntimeError, GradmeshError):
    """References were left at shutdown although `strict_refs` forbids it."""


_lock = threading.Lock()  # guards _process_agent
_process_agent: "Agent | None" = None

here: contextvars.ContextVar["Agent | None"] = contextvars.ContextVar(
    "gradmesh_agent", default=None
)
"""The agent whose call this thread runs; unset outside calls, where the process's agent is used."""

depth: contextvars.ContextVar[int] = contextvars.ContextVar("gradmesh_depth", default=0)
"""Number of nested calls that wait for this thread."""


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
    """Set the agent of the process.

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
    """Unset the agent of the process, if it is this one."""
    global _process_agent
    with _lock:
        if _process_agent is agent:
            _process_agent = None


_collected: contextvars.ContextVar[list[Future[Any]] | None] = contextvars.ContextVar(
    "gradmesh_collected", default=None
)


def collect(future: Future[T]) -> Future[T]:
    """Add a call to the `call_group` block that it was started in, if any."""
    futures = _collected.get()
    if futures is not None:
        futures.append(future)
    return future


@contextmanager
def call_group() -> Iterator[list[Future[Any]]]:
    """Wait at the end of the block for all its `rpc_async` and `remote` calls, also after an error.

    Raises:
        Exception: The error of the first call that failed, unless the block itself raised.
    """
    futures: list[Future[Any]] = []
    before = _collected.set(futures)
    try:
        yield futures
    except BaseException:
        _collected.reset(before)
        for future in futures:
            future.exception()
        raise
    _collected.reset(before)
    wait_all(futures)
