import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import rendezvous_pb2
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import from_wire, methods_of, to_wire
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb

METHODS = methods_of(pb.DESCRIPTOR.services_by_name["ParameterServerService"])


def test_rpcs_are_described() -> None:
    method = METHODS["StartRun"]

    assert method.path == "/gradmesh.parameter_server.v1.ParameterServerService/StartRun"
    assert method.verb == "start_run"
    assert method.request_type is pb.StartRunRequest
    assert method.response_type is pb.StartRunResponse
    assert method.repeatable


def test_bulk_messages_travel_as_frames_and_others_as_they_are() -> None:
    bulk = to_wire(Frame(pb.LookupRequest(lookup=1)), limits.MAX_FRAME_BYTES)
    small = to_wire(pb.ApplyResponse(applied_steps=2), limits.MAX_FRAME_BYTES)

    frame = from_wire(bulk, pb.LookupRequest, limits.MAX_FRAME_BYTES)

    assert isinstance(frame, Frame)
    assert frame.message.lookup == 1
    assert from_wire(small, pb.ApplyResponse, 100) == pb.ApplyResponse(applied_steps=2)


def test_bytes_of_another_message_are_named() -> None:
    with pytest.raises(InvalidFrame, match=r"not a gradmesh\.parameter_server\.v1\.ApplyRequest"):
        from_wire(b"\x0a\xff", pb.ApplyRequest, 100)


def test_messages_without_arrays_stay_small() -> None:
    request = rendezvous_pb2.PutKeyRequest(value=bytes(limits.MAX_HEAD_BYTES))

    with pytest.raises(InvalidFrame, match="send bulk data as arrays"):
        to_wire(request, limits.MAX_FRAME_BYTES)
    with pytest.raises(InvalidFrame, match="send bulk data as arrays"):
        from_wire(request.SerializeToString(), type(request), limits.MAX_FRAME_BYTES)
