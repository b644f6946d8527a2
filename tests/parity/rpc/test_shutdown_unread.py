"""Unread results do not delay shutdown and can be read after it."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rpc_async_functions import own_future
from rpc_functions import add, echo, make_rref, raise_value, sleep

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.shutdown import close
from gradmesh.sdk.transport.deadline import Deadline


@pytest.fixture(params=["shm", "tcp", "stream", "unary"])
def leaving(
    request: pytest.FixtureRequest, make_agent: Callable[..., Agent], as_agent: Any
) -> Agent:
    """A worker of each lane that will leave."""
    transport = TransportConfig(lane=request.param)
    return make_agent(f"leaving-{request.param}", transport=transport, strict_refs=True)


def leave(agent: Agent) -> None:
    close(agent, timeout_s=40)
    assert len(agent.outstanding) == 0


def test_unread_results_and_errors(leaving: Agent, as_agent: Any) -> None:
    with as_agent(leaving):
        results = [gm.rpc_async("worker-0", add, (n, n)) for n in range(30)]
        slow = gm.rpc_async("worker-1", sleep, (0.2,))
        later = gm.rpc_async("worker-2", own_future, (0.2, "late"))
        to_self = gm.rpc_async(leaving.name, add, (1, 1))
        error = gm.rpc_async("worker-0", raise_value)

        leave(leaving)

        assert [future.wait() for future in results] == [2 * n for n in range(30)]
        assert (slow.wait(1), later.wait(1), to_self.done()) == (0.2, "late", True)
        assert to_self.value() == 2
        for _ in range(2):
            with pytest.raises(ValueError, match="expected error"):
                error.wait()


def test_unread_results_of_every_kind(leaving: Agent, as_agent: Any, eventually: Any) -> None:
    called: list[int] = []
    with as_agent(leaving):
        gm.rpc_async("worker-0", add, (1, 1))  # its future is garbage at once
        with_callback = gm.rpc_async("worker-0", add, (1, 2))
        with_callback.add_done_callback(lambda done: called.append(done.value()))
        chained = gm.rpc_async("worker-0", own_future, (0.1, 3)).then(lambda done: done.value() + 1)
        created = gm.remote("worker-1", add, (1, 1))
        made = gm.rpc_async("worker-1", make_rref, (1,))
        kind = gm.remote("worker-1", add, (1, 1)).remote_type()
        tensor = gm.rpc_async("worker-1", echo, (gm.tensor([1.0, 2.0]),))
        timed_out = gm.rpc_async("worker-1", sleep, (2.0,), timeout_s=0.05)

        leave(leaving)

        assert (with_callback.wait(1), chained.wait(120)) == (3, 4)
        assert kind.wait(1).name == "int"
        assert tensor.wait(1).data.tolist() == [1, 2]
        with pytest.raises(errors.DeadlineExceeded):
            timed_out.wait()
        for rref in (created, made.wait(1)):
            with pytest.raises(errors.RefNotFound):
                rref.to_here()
    eventually(lambda: called == [3])


def test_a_callback_added_after_the_end(leaving: Agent, as_agent: Any, eventually: Any) -> None:
    called: list[Any] = []
    with as_agent(leaving):
        future = gm.rpc_async("worker-0", add, (1, 1))
        leave(leaving)
        future.add_done_callback(lambda done: called.append(done.value()))
        assert future.then(lambda done: done.value() + 1).wait(120) == 3
    eventually(lambda: called == [2])


def test_references_in_unread_results_are_deleted(
    leaving: Agent, as_agent: Any, driver: Agent, eventually: Any
) -> None:
    with as_agent(leaving):
        held = [gm.rpc_async(driver.name, make_rref, (n,)) for n in range(5)]
        leave(leaving)
    gc.collect()

    eventually(lambda: len(driver.rrefs.owners) == 0)
    assert all(future.done() for future in held)


def test_thousands_of_unread_results(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    agent = make_agent("hoarder", transport=TransportConfig(lane="unary"))
    with as_agent(agent):
        held = [gm.rpc_async("worker-0", add, (n, 1)) for n in range(1500)]
        leave(agent)
        assert [future.value() for future in held if future.done()] == list(range(1, 1501))


def test_a_call_that_a_served_function_holds(
    make_agent: Callable[..., Agent], as_agent: Any
) -> None:
    """Results of calls that begin during shutdown are kept, too."""
    agent = make_agent("holding")
    drained: list[bool] = []
    deadline = Deadline.after(40)
    with as_agent(agent):
        slow = gm.rpc_async("worker-1", sleep, (3.0,))
        draining = threading.Thread(
            target=lambda: drained.append(agent.outstanding.drain(deadline))
        )
        draining.start()
        held = gm.rpc_async("worker-0", add, (2, 2))
        draining.join(40)

        assert drained == [True]
        assert (slow.value() if slow.done() else None, held.wait(1)) == (3.0, 4)


@pytest.mark.parametrize("end", ["", "gm.rpc.shutdown(graceful=False)", "gm.rpc.shutdown()"])
def test_an_interpreter_ends_with_an_unread_result(address: str, end: str) -> None:
    code = f"""
import gradmesh as gm
from rpc_functions import add
gm.rpc.init("forgetful", coordinator={address!r})
held = gm.rpc_async("worker-0", add, (1, 1))
gm.rpc_async("worker-0", add, (1, 1)).wait()
{end}
print("end", flush=True)
"""
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": here}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )

    assert (found.returncode, found.stdout) == (0, "end\n"), found.stderr
