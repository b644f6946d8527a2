"""A pending call keeps its RRef alive: the result still arrives.

The network delays the call and not the deletion, so that a reference that is deleted too early
is gone at its owner before the call arrives.
"""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from rpc_functions import Point
from test_faulty import Faults
from test_faulty import faults as faults
from test_faulty import faulty as faulty

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc.agent import Agent

ASK: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "remote_type": ("DescribeRef", lambda rref: rref.remote_type()),
    "rpc_async": ("Call", lambda rref: rref.rpc_async().get()),
    "rpc_async, class unknown": ("DescribeRef", lambda rref: rref.rpc_async().get()),
    "remote": ("CreateRef", lambda rref: rref.remote().get()),
    "argument": ("Call", lambda rref: gm.rpc_async("worker-1", "rpc_functions.fetch", (rref,))),
    "argument of the owner": (
        "Call",
        lambda rref: gm.rpc_async("worker-0", "rpc_functions.describe", (rref,)),
    ),
}


def confirmed_point(eventually: Any) -> Any:
    rref = gm.remote("worker-0", Point, (3,))
    eventually(rref.confirmed_by_owner)
    return rref


@pytest.mark.parametrize("how", ASK)
def test_the_reference_is_kept_until_the_answer(
    faulty: Agent, faults: Faults, eventually: Any, how: str
) -> None:
    rpc, ask = ASK[how]
    rref = confirmed_point(eventually)
    if "unknown" not in how and rpc != "DescribeRef":
        assert rref.remote_type().wait().name == "Point"
    faults.delay[rpc] = 0.3

    asked = ask(rref)
    del rref
    gc.collect()
    assert faulty.control.flush(faulty.caller.deadline(10))
    if isinstance(asked, gm.RRef):
        assert asked.to_here() == 3
    elif how == "argument":
        # A Point cannot be sent, so the owner was reached and has the value.
        with pytest.raises(ValueError, match="a Point cannot be sent"):
            asked.wait()
    else:
        assert asked.wait() is not None

    del asked
    eventually(lambda: len(faulty.rrefs.users) == 0)


def test_an_unawaited_type_query_keeps_no_reference(
    faulty: Agent, faults: Faults, eventually: Any
) -> None:
    rref = confirmed_point(eventually)
    faults.delay["DescribeRef"] = 0.2

    rref.remote_type()
    del rref

    eventually(lambda: len(faulty.rrefs.users) == 0)
    assert faulty.outstanding.wait_idle(faulty.caller.deadline(10))


@pytest.mark.parametrize("lane", ["shm", "tcp", "stream", "unary"])
def test_many_temporaries(
    make_agent: Callable[..., Agent], as_agent: Any, eventually: Any, lane: Any
) -> None:
    agent = make_agent(f"hasty-{lane}", transport=TransportConfig(lane=lane))
    with as_agent(agent):
        for _ in range(20):
            kinds = [gm.remote("worker-0", Point, (3,)).remote_type() for _ in range(10)]
            gets = [gm.remote("worker-0", Point, (n,)).rpc_async().get() for n in range(10)]
            assert {kind.wait().name for kind in kinds} == {"Point"}
            assert [get.wait() for get in gets] == list(range(10))
            del kinds, gets
        gc.collect()
        eventually(lambda: len(agent.rrefs.users) == 0)


@pytest.mark.parametrize("ask", [gm.RRef.to_here, gm.RRef.remote_type])
def test_a_question_that_cannot_begin_leaves_no_use_open(
    make_agent: Callable[..., Agent], as_agent: Any, eventually: Any, ask: Callable[[Any], Any]
) -> None:
    agent = make_agent("ending")
    with as_agent(agent):
        rref = confirmed_point(eventually)
        agent.outstanding.close()
        with pytest.raises(errors.Unreachable, match="shut down"):
            ask(rref)
        assert rref._usable().calls == 0
