"""What the fuzzer found in rpcs of references: calls on one whose function had raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.common.v1 import value_pb2, worker_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.transport.deadline import Deadline
from tests.fuzz.callers import FuzzCaller
from tests.fuzz.cluster import started_cluster
from tests.fuzz.rpc_frames import RPCS, SERVER
from tests.fuzz.words import OTHERS

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("fuzz")]

METHODS = {method.name: method for method in RPCS[SERVER]}


@pytest.fixture(scope="module")
def caller() -> Iterator[FuzzCaller]:
    with started_cluster() as cluster:
        yield cluster.caller("client")


def ask(caller: FuzzCaller, name: str, request: Any) -> Any:
    is_bulk = METHODS[name].bulk[0]
    body = Frame(request, []) if is_bulk else request
    return caller.channel(SERVER).call(METHODS[name], body, Deadline.after(20))


def reference(caller: FuzzCaller, counter: int) -> value_pb2.RemoteRef:
    return value_pb2.RemoteRef(
        owner=OTHERS[1], creator=caller.name, incarnation=caller.incarnation, counter=counter
    )


@pytest.fixture(scope="module")
def failed(caller: FuzzCaller) -> value_pb2.RemoteRef:
    """A reference whose function raised."""
    ref = reference(caller, 1)
    me = worker_pb2.WorkerId(name=caller.name, incarnation=caller.incarnation)
    ask(caller, "CreateRef", owner_pb2.CreateRefRequest(ref=ref, function="fuzz.fails", caller=me))
    return ref


def test_a_method_of_a_failed_reference_fails_with_its_error(caller, failed) -> None:
    answer = ask(caller, "Call", owner_pb2.CallRequest(function="values", target=failed))

    assert answer.message.error.type.endswith("ValueError")
    assert "it fails on request" in answer.message.error.message


def test_a_reference_made_by_a_method_of_a_failed_one_holds_its_error(caller, failed) -> None:
    ref = reference(caller, 2)
    made = owner_pb2.CreateRefRequest(ref=ref, function="values", target=failed)
    ask(caller, "CreateRef", made)

    answer = ask(caller, "FetchRef", owner_pb2.FetchRefRequest(ref=ref))

    assert answer.message.error.type.endswith("ValueError")


def test_a_step_of_a_failed_reference_is_refused(caller, failed) -> None:
    request = autograd_pb2.StepParametersRequest(optimizer=failed, number=1, phase=4)

    with pytest.raises(InvalidRequest, match="raised ValueError"):
        ask(caller, "StepParameters", request)
