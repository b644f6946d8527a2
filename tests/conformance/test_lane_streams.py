"""Lanes over gRPC streams: behaviour beyond the conformance suite of lanes."""

import signal
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from gradmesh.protos.errors import DeadlineExceeded, Unauthenticated, Unreachable
from gradmesh.protos.frame import Frame
from gradmesh.protos.lane import HEADER, MAGIC, FrameHeader
from gradmesh.protos.owner.v1 import owner_pb2, owner_pb2_grpc
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.grpc_stream import (
    CHUNK_BYTES,
    VERSION_METADATA,
    data_of,
    to_messages,
)
from gradmesh.sdk.transport.lane.stream import LaneBroken


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def streams(mesh: Any) -> int:
    return len(mesh.server._lanes._streams)


@pytest.mark.parametrize(
    "sizes",
    [[5], [0, 5], [CHUNK_BYTES], [CHUNK_BYTES + 1], [3, CHUNK_BYTES, 3 * CHUNK_BYTES, 0, 1]],
)
def test_a_frame_arrives_whole_in_messages_that_protobuf_reads(sizes: list[int]) -> None:
    parts = [np.full(size, place, np.uint8) for place, size in enumerate(sizes, 1)]

    messages = list(to_messages([part.tobytes() for part in parts]))

    whole = b"".join(part.tobytes() for part in parts)
    assert b"".join(data_of(message) for message in messages) == whole
    assert all(len(data_of(message)) <= CHUNK_BYTES for message in messages)
    read = [owner_pb2.ExchangeRequest.FromString(message).data for message in messages]
    assert b"".join(read) == whole


@pytest.mark.parametrize("bad", [b"", b"x", b"\x0a\x05abc", b"\x12\x03abc"])
def test_messages_that_are_no_part_of_a_frame_are_refused(bad: bytes) -> None:
    with pytest.raises(LaneBroken):
        data_of(bad)


def test_closed_channels_leave_no_stream(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    mesh.lookup(np.arange(3))
    threads = len(mesh.threads.alive())

    for _ in range(5):
        with mesh.connect() as channel:
            mesh.lookup(np.arange(3), channel=channel)
            started = [
                channel.start(METHODS["Lookup"], Frame(pb.LookupRequest()), Deadline.after(9))
                for _ in range(4)
            ]
            started[0].result()
            started[1].cancel()
        del started

    wait_until(lambda: streams(mesh) == 1)
    # The server keeps its threads for later streams; the clients' threads have ended.
    wait_until(lambda: len(mesh.threads.alive()) <= threads + 8)


@pytest.mark.slow
def test_callers_beyond_the_limit_make_a_call_each(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    server = mesh.serve(TransportConfig(max_lanes=2))

    for _ in range(4):
        mesh.lookup(np.arange(3), channel=mesh.connect(server))

    assert mesh.echo.borrowed == [True, True, False, False]


def test_auto_falls_to_a_stream(lane_mesh: Any) -> None:
    mesh = lane_mesh("auto")
    server = mesh.serve(TransportConfig(lane="stream"))
    channel = mesh.connect(server)

    mesh.lookup(np.arange(3), channel=channel)

    assert mesh.echo.borrowed == [True]
    assert len(server._lanes._streams) == 1


def test_a_stream_needs_the_token(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream+tls")
    nameless = SecurityConfig(
        tls_authority_file=mesh.security.tls_authority_file,
        tls_certificate_file=mesh.security.tls_certificate_file,
        tls_key_file=mesh.security.tls_key_file,
    )

    with pytest.raises(Unauthenticated):
        mesh.lookup(np.arange(3), channel=mesh.connect(security=nameless))

    assert streams(mesh) == 0
    assert mesh.echo.borrowed == []


def test_more_streams_than_threads_do_not_block_calls(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    channels = [mesh.connect() for _ in range(20)]

    for channel in channels:
        mesh.lookup(np.arange(3), channel=channel)
    mesh.lookup(np.arange(3), channel=mesh.connect(lane="unary"))

    assert streams(mesh) == 20
    assert mesh.echo.borrowed == [True] * 20 + [False]


def test_a_late_answer_ends_its_stream_alone(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    waiting = Frame(pb.LookupRequest(tables=["wait"]), [np.arange(3)])
    patient = mesh.channel.start(METHODS["Lookup"], waiting, Deadline.after(20))
    assert mesh.echo.entered.acquire(timeout=120)

    with pytest.raises(DeadlineExceeded):
        mesh.lookup(np.arange(3), table="wait", timeout_s=0.3)
    mesh.echo.leave.set()

    np.testing.assert_array_equal(patient.result().arrays[0], np.arange(3))


class Interrupted(Exception):
    """Raised by a signal handler, as KeyboardInterrupt is."""


def test_an_interrupted_call_leaves_a_channel_that_works_and_closes(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    mesh.lookup(np.arange(3))

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupted):
                mesh.lookup(np.arange(3), table="wait", timeout_s=20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    mesh.echo.leave.set()

    np.testing.assert_array_equal(mesh.lookup(np.arange(3))[0], np.arange(3))
    mesh.channel.close()
    wait_until(lambda: streams(mesh) == 0)


def frame(**changed: int) -> bytes:
    return HEADER.pack(*FrameHeader(MAGIC, 3, 1, 1000, 0, 0, 0, 0)._replace(**changed))


@pytest.mark.parametrize("bad", [frame(magic=1), frame(head_bytes=2**32 - 1), frame() + frame()])
def test_a_generated_client_exchanges_frames_and_gets_errors_for_bad_ones(
    lane_mesh: Any, bad: bytes
) -> None:
    mesh = lane_mesh("stream")
    with grpc.insecure_channel(mesh.server.address) as channel:
        stub = owner_pb2_grpc.OwnerServiceStub(channel)
        sent = iter([owner_pb2.ExchangeRequest(data=data) for data in (frame(), bad)])

        answers = list(stub.Exchange(sent, metadata=[VERSION_METADATA], timeout=120))

    assert len(answers) == 2
    assert HEADER.unpack_from(answers[0].data)[1:3] == (0, 1)
    assert b"INVALID_FRAME" in answers[1].data
    wait_until(lambda: streams(mesh) == 0)


def test_another_version_gets_no_stream(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    with grpc.insecure_channel(mesh.server.address) as channel:
        stub = owner_pb2_grpc.OwnerServiceStub(channel)

        with pytest.raises(grpc.RpcError, match="lanes of version") as caught:
            list(stub.Exchange(iter(()), timeout=120))

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_calls_on_a_closed_channel_name_it(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    mesh.channel.close()

    with pytest.raises(Unreachable, match="is closed"):
        mesh.lookup(np.arange(3))


def test_a_grpc_without_direct_calls_makes_a_call_each(
    lane_mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = lane_mesh("stream")
    monkeypatch.setattr("gradmesh.sdk.transport.lane.direct_call._core", None)

    mesh.lookup(np.arange(3), channel=mesh.connect())

    assert mesh.echo.borrowed == [False]
