"""The errors that callers get, without internal details."""

import logging
import sys
from typing import Any

import grpc
import numpy as np
import pytest

from gradmesh.protos import errors
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.transport.deadline import Deadline

OWNER = methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"])
SERVER = methods_of(parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"])


def raising(error: BaseException) -> Any:
    def behave(request: Any, call: Any) -> Any:
        raise error

    return behave


@pytest.mark.parametrize(
    "cls",
    [c for c in errors.CATALOGUE.values() if c.retry is not errors.Retry.CALL],
    ids=lambda cls: cls.__name__,
)
def test_each_error_arrives_as_itself_with_its_metadata(
    serve: Any, dial: Any, describe: Any, script: Any, cls: type[errors.MeshError]
) -> None:
    script.behaviours["describe"] = raising(cls("no table 'x'; create it", table="x"))
    channel = dial(serve().address)

    with pytest.raises(errors.MeshError) as info:
        describe(channel)

    assert type(info.value) is cls
    assert info.value.metadata == {"table": "x"}
    assert str(info.value).startswith("no table 'x'; create it [ps-0 at 127.0.0.1:")
    assert str(info.value).endswith(", Describe]")


def test_transient_errors_are_retried_until_the_deadline(
    serve: Any, dial: Any, describe: Any, script: Any
) -> None:
    script.behaviours["describe"] = raising(errors.StepPending("step 3", applied_steps=2))
    channel = dial(serve().address)

    with pytest.raises(errors.DeadlineExceeded, match="timed out: step 3") as info:
        describe(channel, timeout_s=2.0)

    assert type(info.value.__cause__) is errors.StepPending
    assert info.value.metadata == {"applied_steps": "2"}
    assert script.calls["describe"] > 1


@pytest.mark.parametrize("error", [KeyError("secret"), SystemExit("secret")], ids=repr)
def test_unforeseen_errors_leak_nothing_and_are_logged(
    serve: Any,
    dial: Any,
    describe: Any,
    script: Any,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    script.behaviours["describe"] = raising(error)
    channel = dial(serve().address)

    with pytest.raises(errors.InternalError) as info:
        describe(channel)

    request_id = info.value.metadata["request_id"]
    assert str(info.value).startswith(f"internal error, request {request_id} [")
    assert "secret" not in repr(info.value) + str(info.value.metadata)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert request_id in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("letter", ["x", "é", "\n", "\ud800", "漢"], ids=ascii)
def test_long_messages_arrive_shortened(
    serve: Any, dial: Any, describe: Any, script: Any, letter: str
) -> None:
    message = f"begin {letter * 100_000} end"
    script.behaviours["describe"] = raising(
        errors.RemoteFailure(message, one=letter * 9_000, two=message, three=message)
    )
    channel = dial(serve().address)

    with pytest.raises(errors.RemoteFailure) as info:
        describe(channel)

    assert str(info.value).startswith("begin ")
    assert " … " in str(info.value)
    assert " end [ps-0" in str(info.value)
    assert info.value.metadata["two"].endswith(" end")


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a",
        b"\x7a\xff\xff\xff\x7f",
        b"\x7a\x06\x08\x0b\x12\x02\xff\x7f",
        b"\xff" * 50,
        b"\x0a\x02\xff\xff",
        owner_pb2.CallRequest(function="f").SerializeToString() + b"\x12",
    ],
    ids=["key", "length", "claim", "noise", "utf-8", "truncated"],
)
def test_bad_frames_get_a_typed_error_and_reach_no_handler(
    serve: Any, dial: Any, describe: Any, script: Any, data: bytes
) -> None:
    channel = dial(serve().address)

    with pytest.raises(grpc.RpcError) as info:
        channel.attempt(OWNER["Call"], data, 5).result()

    assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert script.calls["call"] == 0
    assert describe(channel).name == "here"


def test_oversized_frames_are_refused_on_both_ends(
    serve: Any, dial: Any, describe: Any, script: Any
) -> None:
    server = serve(max_frame_bytes=10_000)
    request = Frame(owner_pb2.CallRequest(function="f"), [np.zeros(20_000, np.uint8)])
    careful = dial(server.address, max_frame_bytes=10_000)
    careless = dial(server.address)

    for channel in (careful, careless):
        with pytest.raises(errors.InvalidFrame, match="raise max_frame_bytes"):
            channel.call(OWNER["Call"], request, Deadline.after(5))

        assert describe(channel).name == "here"
    assert script.calls["call"] == 0


def test_an_answer_that_is_too_large_is_a_typed_error(
    serve: Any, dial: Any, describe: Any, script: Any
) -> None:
    script.behaviours["call"] = lambda request, call: Frame(
        owner_pb2.CallResponse(), [np.zeros(20_000, np.uint8)]
    )
    channel = dial(serve(max_frame_bytes=10_000).address)

    with pytest.raises(errors.InvalidFrame, match=r"exceeds 10000; split the request"):
        channel.call(OWNER["Call"], Frame(owner_pb2.CallRequest()), Deadline.after(5))

    assert describe(channel).name == "here"


def test_a_response_that_is_not_a_message_is_a_typed_error(
    serve: Any, dial: Any, script: Any
) -> None:
    script.behaviours["describe"] = lambda request, call: owner_pb2.DescribeResponse(name="here")
    described = OWNER["Describe"]
    # FetchRefResponse's first field is a message, not text that happens to be one.
    wrong = Method(
        described.service, "Describe", described.request_type, owner_pb2.FetchRefResponse, True
    )
    channel = dial(serve().address)

    with pytest.raises(errors.InvalidFrame, match=r"ps-0 at .*: not a .*FetchRefResponse"):
        channel.call(wrong, owner_pb2.DescribeRequest(), Deadline.after(5))


@pytest.mark.parametrize(
    "method",
    [
        SERVER["InspectTable"],
        Method(
            "gradmesh.owner.v1.OwnerService",
            "Fly",
            owner_pb2.DescribeRequest,
            owner_pb2.DescribeResponse,
            True,
        ),
    ],
    ids=["service", "rpc"],
)
def test_rpcs_that_a_worker_does_not_serve_are_a_mismatch(
    serve: Any, dial: Any, method: Method
) -> None:
    channel = dial(serve().address)

    with pytest.raises(errors.ProtocolMismatch, match="same version of gradmesh"):
        channel.call(method, method.request_type(), Deadline.after(5))


def test_a_handler_that_gives_the_wrong_type_is_an_internal_error(
    serve: Any, dial: Any, describe: Any, script: Any
) -> None:
    script.behaviours["describe"] = lambda request, call: sys
    channel = dial(serve().address)

    with pytest.raises(errors.InternalError, match="internal error, request"):
        describe(channel)
