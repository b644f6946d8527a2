"""The codec against hypothesis: both directions, and random bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.protos import limits
from gradmesh.protos.dtype import WIRE_TO_NUMPY, wire_dtype
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.frame import Frame, decode, encode
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from tests.own_process import peak_bytes

Ndarray = np.ndarray[Any, Any]

quick = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def arrays(draw: st.DrawFn) -> Ndarray:
    dtype = draw(st.sampled_from(sorted(WIRE_TO_NUMPY.values(), key=str)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=limits.MAX_AXES)))
    count = int(np.prod(shape, dtype=int))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype.kind == "b":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype, count).reshape(shape)
    if draw(st.booleans()) and dtype.kind in "iuf":
        array = array.astype(dtype.newbyteorder(">"))
    if draw(st.booleans()):
        array = array[::-1] if array.ndim else array
    return np.asfortranarray(array) if draw(st.booleans()) else array


messages = st.builds(
    pb.LookupRequest,
    lookup=st.integers(0, 2**64 - 1),
    shard_epoch=st.integers(0, 2**64 - 1),
    tables=st.lists(st.text(max_size=200), max_size=5),
)
frames = st.builds(Frame, messages, st.lists(arrays(), max_size=5))


def little(array: Ndarray) -> bytes:
    return array.astype(WIRE_TO_NUMPY[wire_dtype(array.dtype)]).tobytes("C")


@quick
@given(frames)
def test_protobuf_reads_our_output(frame: Frame[pb.LookupRequest]) -> None:
    got = pb.LookupRequest.FromString(encode(frame))

    assert [a.dtype for a in got.arrays] == [wire_dtype(a.dtype) for a in frame.arrays]
    assert [tuple(a.shape) for a in got.arrays] == [a.shape for a in frame.arrays]
    assert [a.data for a in got.arrays] == [little(a) for a in frame.arrays]
    del got.arrays[:]
    assert got == frame.message


@quick
@given(frames)
def test_output_of_protobuf_is_read(frame: Frame[pb.LookupRequest]) -> None:
    message = pb.LookupRequest()
    message.CopyFrom(frame.message)
    for a in frame.arrays:
        message.arrays.add(dtype=wire_dtype(a.dtype), shape=a.shape, data=little(a))

    got = decode(message.SerializeToString(), pb.LookupRequest)

    assert got.message == frame.message
    assert [a.shape for a in got.arrays] == [a.shape for a in frame.arrays]
    assert [a.tobytes() for a in got.arrays] == [little(a) for a in frame.arrays]


def read(data: bytes) -> None:
    """Decode; anything but arrays or InvalidFrame is a failure."""
    for message_type in (pb.LookupRequest, owner_pb2.CallRequest):
        try:
            frame = decode(data, message_type)
        except InvalidFrame:
            continue
        assert sum(array.nbytes for array in frame.arrays) <= len(data)


def survives(in_own_process: Callable[..., int], data: bytes) -> None:
    """Decode; excessive memory is a failure, too."""
    assert in_own_process(peak_bytes, read, data) < 50_000 + 20 * len(data)


@quick
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_read(
    in_own_process: Callable[..., int], data: bytes
) -> None:
    survives(in_own_process, data)


@quick
@given(st.binary(max_size=60))
def test_arbitrary_arrays_are_refused_or_read(
    in_own_process: Callable[..., int], data: bytes
) -> None:
    survives(in_own_process, b"\x7a" + bytes([len(data)]) + data)


@quick
@given(frames, st.data())
def test_mutated_and_truncated_frames_are_refused_or_read(
    in_own_process: Callable[..., int], frame: Frame[pb.LookupRequest], data: st.DataObject
) -> None:
    whole = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(0, 4))):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    survives(in_own_process, bytes(whole[: data.draw(st.integers(0, len(whole)))]))
