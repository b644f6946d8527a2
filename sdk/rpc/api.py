"""The public functions of rpc."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradmesh.protos.errors import WorkerNotFound
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.current import collect, current_agent
from gradmesh.sdk.rpc.directory import To
from gradmesh.sdk.rpc.ids import WorkerInfo
from gradmesh.sdk.rpc.rref.rref import RRef
from gradmesh.sdk.transport.policy import RetryPolicy, Timeouts


def rpc_sync(
    to: To,
    function: Callable[..., Any] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Call a registered function on a worker and wait for its result.

    Args:
        to: Name, rank or WorkerInfo; this worker itself, too.
        function: The function, or the name it is registered under there.
        args: Positional arguments: anything typed, see docs/rpc.md.
        kwargs: Named arguments.
        timeout_s: Deadline in seconds; the default of rpc if None, `math.inf` for none.

    Raises:
        WorkerNotFound: There is no such worker.
        FunctionNotFound: It has no such function.
        Unreachable: The worker was lost; the function may have run, and is not called again.
        DeadlineExceeded: No reply arrived in time; the function may still run.
        Exception: The exception of the function, of its own type if both ends register it.
    """
    agent = current_agent()
    name = agent.functions.name_of(function)
    return agent.caller.start(to, name, args, kwargs or {}, timeout_s).finish()


def rpc_async(
    to: To,
    function: Callable[..., Any] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> Future[Any]:
    """Call a registered function on a worker; return the future of its result.

    Arguments and the errors of the future are those of `rpc_sync`. The future also has connection
    failures; only errors of the caller are raised at once.

    Raises:
        WorkerNotFound: There never was such a worker.
        InvalidRequest: An argument cannot be sent.
    """
    agent = current_agent()
    name = agent.functions.name_of(function)
    return collect(agent.caller.call(to, name, args, kwargs or {}, timeout_s))


def remote(
    to: To,
    function: Callable[..., Any] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> RRef[Any]:
    """Call a registered function on a worker and keep its result there; return an RRef at once.

    A registered class makes an object there. Its errors are raised when the RRef is used.

    Args:
        to: Name, rank or WorkerInfo; this worker itself, too.
        function: The function or class, or the name it is registered under there.
        args: Positional arguments.
        kwargs: Named arguments.
        timeout_s: Deadline of the creation in seconds; as in `rpc_sync`.

    Raises:
        WorkerNotFound: There is no such worker.
        InvalidRequest: An argument cannot be sent, or the function is not registered here.
    """
    agent = current_agent()
    name = agent.functions.name_of(function)
    return agent.caller.create(to, name, args, kwargs or {}, timeout_s)


def get_worker_info(name: str | None = None) -> WorkerInfo:
    """Return the WorkerInfo of this worker, or of a named one.

    Raises:
        WorkerNotFound: There is none of that name.
    """
    agent = current_agent()
    return agent.info if name is None else agent.caller.find(name)


def get_worker_infos() -> list[WorkerInfo]:
    """Return the WorkerInfo of every process that can be called, in the order of names."""
    agent = current_agent()
    return agent.directory.infos(agent.caller.deadline(None))


def wait_for_workers(*names: str, timeout_s: float | None = None) -> list[WorkerInfo]:
    """Wait until workers have joined; return their WorkerInfos.

    Args:
        names: The names of the workers.
        timeout_s: How long; the default of rpc if None.

    Raises:
        WorkerNotFound: One did not join in time.
    """
    agent = current_agent()
    deadline = agent.caller.deadline(timeout_s)
    pauses = RetryPolicy(max_s=0.3).pauses()
    while True:
        agent.directory.refresh(agent.caller.deadline(None))
        try:
            return [agent.directory.find(name, deadline) for name in names]
        except WorkerNotFound:
            if deadline.remaining_s() < (pause_s := next(pauses)):
                raise
        time.sleep(pause_s)


def set_timeout(timeout_s: float) -> None:
    """Set the default deadline of later calls in seconds; `math.inf` for none.

    Raises:
        InvalidRequest: It is not a number above 0.
    """
    caller = current_agent().caller
    caller.timeout_s = Timeouts(call_s=timeout_s).call_s


def get_timeout() -> float:
    """Return the default deadline of calls in seconds."""
    return current_agent().caller.timeout_s


def debug_info() -> dict[str, int]:
    """Return counts of threads, calls and references of this worker."""
    return current_agent().debug_info()
