"""The codec's bytes are protobuf's: each test compares with, or reads by, the generated classes."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.protos.frame import Frame, decode, encode, is_bulk
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.wireformat import varint
from tests.own_process import peak_bytes

DTYPES = sorted(WIRE_TO_NUMPY.values(), key=str)


def request(*arrays: np.ndarray[Any, Any]) -> Frame[pb.LookupRequest]:
    return Frame(pb.LookupRequest(lookup=3, tables=["users", "items"]), list(arrays))


def round_trip(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    (got,) = decode(encode(request(array)), pb.LookupRequest).arrays
    return got


def same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> bool:
    return got.shape == want.shape and got.tobytes() == want.tobytes("C")


def elements(dtype: np.dtype[Any], *shape: int) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(7).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return (raw % 2).astype(bool)[..., 0] if dtype.kind == "b" else raw.view(dtype)[..., 0]


def refuse(frame: bytes) -> None:
    with pytest.raises(InvalidFrame):
        decode(frame, pb.LookupRequest)


def claim(dtype: int, shape: tuple[int, ...], data: bytes) -> bytes:
    """Return a frame whose array declares a shape that may not fit its data."""
    array = array_pb2.Array(dtype=dtype, shape=shape, data=data)  # type: ignore[arg-type]
    return bytes(pb.LookupRequest(arrays=[array]).SerializeToString())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (1,) * 8])
def test_arrays_of_every_type_and_shape_return_unchanged(
    dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    array = elements(dtype, *shape)

    got = round_trip(array)

    assert got.dtype == dtype
    assert same(got, array)
    assert not got.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_generated_client_reads_and_writes_the_same(dtype: np.dtype[Any]) -> None:
    array = elements(dtype, 4, 3)

    message = pb.LookupRequest.FromString(encode(request(array)))
    (got,) = decode(message.SerializeToString(), pb.LookupRequest).arrays

    assert list(message.tables) == ["users", "items"]
    assert list(message.arrays[0].shape) == [4, 3]
    assert message.arrays[0].data == array.tobytes()
    assert same(got, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6)[::2, ::-3],
        np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        np.arange(6).reshape(2, 3).T,
        np.broadcast_to(np.float32(3), (4, 5)),
        np.arange(12, dtype=">i4").reshape(3, 4),
        np.arange(12, dtype=">f8")[::2],
        np.frombuffer(bytes(9), np.uint8)[1:].view(np.float64),
    ],
    ids=["strided", "fortran", "transposed", "broadcast", "big endian", "both", "unaligned"],
)
def test_any_layout_and_byte_order_can_be_sent(array: np.ndarray[Any, Any]) -> None:
    got = round_trip(array)

    assert np.array_equal(got, array)
    assert got.dtype == array.dtype.newbyteorder("<")
    assert got.flags.c_contiguous


def test_sending_leaves_the_array_alone() -> None:
    array = np.arange(6.0).reshape(2, 3).T
    array.flags.writeable = False

    encode(request(array))

    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_elements_lie_at_multiples_of_16_bytes() -> None:
    # Sizes around the places where a length takes one byte more.
    sizes = [*range(90, 131), *range(16_340, 16_390), *range(2_097_110, 2_097_160, 3)]

    for size in sizes:
        data = encode(request(np.ones(size % 9, np.uint8), np.full(size, 255, np.uint8)))

        assert data.index(b"\xff" * min(size, 64)) % 16 == 0, size


def test_received_arrays_are_views_of_the_bytes() -> None:
    data = encode(request(np.arange(1000), np.ones((5, 3), np.float32), np.ones(3, np.float64)))

    arrays = decode(data, pb.LookupRequest).arrays

    whole = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(array, whole) for array in arrays)
    assert all(array.flags.aligned for array in arrays)


def test_unaligned_arrays_of_another_client_are_copied() -> None:
    data = np.arange(5.0).tobytes()

    for pad in range(8):
        message = pb.LookupRequest(tables=["x" * pad])
        message.arrays.add(dtype=array_pb2.ELEMENT_TYPE_FLOAT64, shape=[5], data=data)
        (got,) = decode(message.SerializeToString(), pb.LookupRequest).arrays

        assert got.tolist() == [0, 1, 2, 3, 4]
        assert got.flags.aligned
        assert not got.flags.writeable


def test_fields_around_and_between_the_arrays_are_kept() -> None:
    ids = array_pb2.Array(dtype=array_pb2.ELEMENT_TYPE_INT8, shape=[1], data=b"\1")
    parts = [
        pb.LookupRequest(tables=["a"], arrays=[ids]),
        pb.LookupRequest(tables=["b"], lookup=5, arrays=[ids]),
        pb.LookupRequest(tables=["c"]),
    ]

    frame = decode(b"".join(p.SerializeToString() for p in parts), pb.LookupRequest)

    assert list(frame.message.tables) == ["a", "b", "c"]
    assert frame.message.lookup == 5
    assert [array.tolist() for array in frame.arrays] == [[1], [1]]


def test_shape_may_come_unpacked_and_in_pieces() -> None:
    body = b"\x10\x02" + b"\x12\x01\x03" + b"\x08\x06" + b"\x22\x06abcdef"

    (got,) = decode(b"\x7a" + varint(len(body)) + body, pb.LookupRequest).arrays

    assert got.shape == (2, 3)
    assert got.tobytes() == b"abcdef"


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, complex), np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]")],
    ids=lambda array: str(array.dtype),
)
def test_other_types_cannot_be_sent(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"dtype .* cannot be sent; use one of bool, int8"):
        encode(request(array))


def test_nine_axes_cannot_be_sent() -> None:
    with pytest.raises(InvalidRequest, match="9 axes cannot be sent; at most 8"):
        encode(request(np.zeros((1,) * 9)))


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    message = pb.LookupRequest.FromString(encode(request(np.ones(1, ml_dtypes.bfloat16))))

    assert message.arrays[0].data == np.ones(1, np.float32).tobytes()[2:]


def test_an_oversized_frame_is_refused_before_it_is_allocated() -> None:
    huge = np.broadcast_to(np.float32(1), (2**20, 2**20))

    with pytest.raises(InvalidFrame, match="split the request or raise max_frame_bytes"):
        encode(request(huge))
    with pytest.raises(InvalidFrame, match="exceeds 100;"):
        encode(request(np.zeros(50, np.uint8), np.zeros(50, np.uint8)), max_bytes=100)
    with pytest.raises(InvalidFrame, match="exceeds 20;"):
        encode(request(np.zeros(1, np.uint8)), max_bytes=20)
    with pytest.raises(InvalidFrame, match="exceeds 20;"):
        decode(encode(request(np.zeros(50))), pb.LookupRequest, max_bytes=20)


def test_number_of_arrays_is_limited_both_ways() -> None:
    one = array_pb2.Array(dtype=array_pb2.ELEMENT_TYPE_INT8, shape=[0])
    most = pb.LookupRequest(arrays=[one] * limits.MAX_ARRAYS).SerializeToString()
    too_many = pb.LookupRequest(arrays=[one] * (limits.MAX_ARRAYS + 1)).SerializeToString()

    assert len(decode(most, pb.LookupRequest).arrays) == limits.MAX_ARRAYS
    with pytest.raises(InvalidFrame, match="4097 arrays in one frame, at most 4096"):
        decode(too_many, pb.LookupRequest)
    with pytest.raises(InvalidFrame, match="4097 arrays in one frame, at most 4096"):
        encode(request(*[np.zeros(0)] * (limits.MAX_ARRAYS + 1)))


def test_the_size_outside_arrays_is_limited_both_ways() -> None:
    message = pb.LookupRequest(tables=["x" * limits.MAX_HEAD_BYTES])

    with pytest.raises(InvalidFrame, match="send bulk data as arrays"):
        encode(Frame(message))
    with pytest.raises(InvalidFrame, match="send bulk data as arrays"):
        decode(message.SerializeToString(), pb.LookupRequest)


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ((2**40,), b""),
        ((2**40,), bytes(64)),
        ((2**47,) * 8, bytes(64)),
        ((0, *(2**47,) * 7), b""),
        ((2**63 - 1,), b""),
        ((-1,), bytes(8)),
        ((-2, -4), bytes(64)),
        ((1,) * 9, bytes(8)),
        ((3,), bytes(23)),
        ((), b""),
    ],
    ids=str,
)
def test_sizes_that_exceed_the_data_are_refused(
    in_own_process: Callable[..., int], shape: tuple[int, ...], data: bytes
) -> None:
    frame = claim(array_pb2.ELEMENT_TYPE_FLOAT64, shape, data)

    assert in_own_process(peak_bytes, refuse, frame) < 100_000


@pytest.mark.parametrize("number", [0, 14, 99, -1, 2**31 - 1])
def test_unknown_element_types_are_refused(number: int) -> None:
    body = b"\x08" + varint(number % 2**64)

    with pytest.raises(InvalidFrame, match="array 0: unknown element type"):
        decode(b"\x7a" + varint(len(body)) + body, pb.LookupRequest)


def test_bools_are_0_or_1() -> None:
    with pytest.raises(InvalidFrame, match="a bool other than 0 and 1"):
        decode(claim(array_pb2.ELEMENT_TYPE_BOOL, (2,), b"\1\2"), pb.LookupRequest)


@pytest.mark.parametrize("filler", [b"\x08\x00", b"\x2a\x00", b"\x7a\x80\x01" + b"\x1a\x00" * 64])
def test_many_tiny_fields_cost_memory_in_proportion_to_their_size(
    in_own_process: Callable[..., int], filler: bytes
) -> None:
    data = filler * (2**17 // len(filler))

    assert in_own_process(peak_bytes, refuse, data + b"\x7a") < 2 * len(data)


def test_bulk_messages_are_recognised_by_their_arrays() -> None:
    assert is_bulk(pb.LookupRequest)
    assert is_bulk(pb.PushRequest())
    assert not is_bulk(pb.ApplyRequest)
