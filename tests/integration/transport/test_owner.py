"""Functions by name and kept values, called over the wire."""

import sys
import threading
from typing import Any

import numpy as np
import pytest

from gradmesh.protos import errors
from gradmesh.protos.common.v1 import context_pb2, value_pb2
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.value import from_value, to_value
from gradmesh.protos.version import VERSION
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.reply import error_from_proto
from gradmesh.sdk.rpc.servicer import NoContexts, OwnerServicer
from gradmesh.sdk.transport.deadline import Deadline

METHODS = methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"])


def fail() -> None:
    raise LookupError("the reason")


def refuse() -> None:
    raise errors.StepPending("from another worker")


class Counted:
    """A function with an effect that can be counted, and that takes its time."""

    def __init__(self) -> None:
        self.runs = 0
        self.entered, self.free = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.runs += 1
        self.entered.set()
        self.free.wait(120)
        return self.runs


class Peer:
    """Calls a worker as the SDK will: values in, values out."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def rpc(self, name: str, request: Any) -> Any:
        return self.channel.call(METHODS[name], request, Deadline.after(10))

    def call(self, function: str, *args: object, **kwargs: object) -> Any:
        arrays: list[Any] = []
        request = owner_pb2.CallRequest(
            function=function,
            args=[to_value(a, arrays) for a in args],
            kwargs={k: to_value(v, arrays) for k, v in kwargs.items()},
        )
        frame = self.rpc("Call", Frame(request, arrays))
        if frame.message.HasField("error"):
            raise error_from_proto(frame.message.error, Registry())
        return from_value(frame.message.result, frame.arrays)

    def create(self, ref: value_pb2.RemoteRef, function: str) -> None:
        self.rpc("CreateRef", Frame(owner_pb2.CreateRefRequest(ref=ref, function=function)))

    def fetch(self, ref: value_pb2.RemoteRef) -> Any:
        frame = self.rpc("FetchRef", owner_pb2.FetchRefRequest(ref=ref))
        if frame.message.HasField("error"):
            raise error_from_proto(frame.message.error, Registry())
        return from_value(frame.message.value, frame.arrays)


def reference(counter: int = 1, owner: str = "ps-0") -> value_pb2.RemoteRef:
    return value_pb2.RemoteRef(owner=owner, creator="trainer-0", incarnation=5, counter=counter)


@pytest.fixture
def functions() -> Registry:
    functions = Registry()
    functions.register("sum", lambda *args, **kwargs: sum(args, kwargs.get("start", 0)))
    functions.register("fail", fail)
    functions.register("refuse", refuse)
    functions.register("exit", sys.exit)
    functions.register("set", set)
    functions.register("objects", lambda: np.array([object()]))
    functions.register("module", lambda: {"weights": np.ones((2, 3), np.float16)})
    return functions


@pytest.fixture
def peer(serve: Any, dial: Any, functions: Registry) -> Peer:
    servicer = OwnerServicer("ps-0", "parameter-server", 7, functions, NoContexts())
    return Peer(dial(serve(servicer).address))


def test_functions_are_called_with_values_and_arrays(peer: Peer) -> None:
    assert peer.call("sum", 1, 2, start=3) == 6
    assert peer.call("sum", np.arange(3), np.ones(3, int)).tolist() == [1, 2, 3]


def test_an_unknown_function_is_named(peer: Peer) -> None:
    with pytest.raises(errors.FunctionNotFound, match=r"ps-0 has no function 'nope'; decorate it"):
        peer.call("nope")
    with pytest.raises(errors.FunctionNotFound):
        peer.create(reference(), "nope")


def test_a_failure_carries_its_traceback(peer: Peer) -> None:
    with pytest.raises(LookupError) as info:
        peer.call("fail")

    text = str(info.value)
    assert text.startswith("the reason\n\nfail on ps-0:\nTraceback (most recent call last)")
    assert "in fail" in text
    assert 'raise LookupError("the reason")' in text


@pytest.mark.parametrize(
    ("function", "cause"),
    [("exit", errors.RemoteFailure), ("refuse", errors.StepPending), ("sum", TypeError)],
)
def test_any_exception_of_a_function_is_returned(
    peer: Peer, function: str, cause: type[Exception]
) -> None:
    args = ["text"] if function == "sum" else []

    with pytest.raises(cause, match=f"{function} on ps-0"):
        peer.call(function, *args)


@pytest.mark.parametrize("function", ["set", "objects"])
def test_results_that_cannot_be_sent_are_the_functions_failure(peer: Peer, function: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"{function} returned what cannot be sent"):
        peer.call(function)


def test_arguments_that_point_nowhere_are_refused(peer: Peer) -> None:
    request = owner_pb2.CallRequest(function="sum", args=[value_pb2.Value(array_index=3)])

    with pytest.raises(errors.InvalidFrame, match="an array that was not sent"):
        peer.rpc("Call", Frame(request))


def test_values_are_kept_for_their_creator(peer: Peer) -> None:
    peer.create(reference(), "module")

    assert peer.fetch(reference())["weights"].dtype == np.float16
    assert peer.rpc("Describe", owner_pb2.DescribeRequest()).kept_refs == 1

    peer.rpc("DeleteRef", owner_pb2.DeleteRefRequest(ref=reference()))
    peer.rpc("DeleteRef", owner_pb2.DeleteRefRequest(ref=reference()))
    with pytest.raises(errors.RefNotFound, match="ps-0 keeps nothing for trainer-0's reference 1"):
        peer.fetch(reference())


def test_a_reference_is_created_once_by_calls_at_once(peer: Peer, functions: Registry) -> None:
    counted = Counted()
    functions.register("counted", counted)

    threads = [
        threading.Thread(target=peer.create, args=(reference(), "counted")) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert counted.entered.wait(120)
    counted.free.set()
    for thread in threads:
        thread.join(10)

    assert peer.fetch(reference()) == 1
    assert counted.runs == 1


def test_an_error_of_a_creation_is_raised_at_fetch(peer: Peer) -> None:
    peer.create(reference(), "fail")

    for _ in range(2):
        with pytest.raises(LookupError, match="the reason"):
            peer.fetch(reference())


def test_a_creation_that_was_refused_leaves_nothing(peer: Peer) -> None:
    with pytest.raises(errors.FunctionNotFound):
        peer.create(reference(), "nope")

    peer.create(reference(), "module")
    assert peer.fetch(reference())["weights"].shape == (2, 3)


def test_a_reference_of_another_owner_is_refused(peer: Peer) -> None:
    with pytest.raises(errors.InvalidRequest, match="belongs to 'ps-9', not to 'ps-0'"):
        peer.create(reference(owner="ps-9"), "module")


def test_a_worker_describes_itself(peer: Peer, functions: Registry) -> None:
    owner = peer.rpc("Describe", owner_pb2.DescribeRequest())

    assert (owner.name, owner.role, owner.incarnation) == ("ps-0", "parameter-server", 7)
    assert owner.version == VERSION
    assert list(owner.functions) == functions.names()


def test_a_worker_without_contexts_has_none_to_release(peer: Peer) -> None:
    context = context_pb2.ContextId(worker="trainer-0", incarnation=1, counter=1)

    released = peer.rpc("ReleaseContext", owner_pb2.ReleaseContextRequest(context=context))

    assert not released.found
