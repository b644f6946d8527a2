import pytest

from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.wireformat import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    read_field,
    read_varint,
    varint,
)

VALUES = [0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**21, 2**32, 2**63, 2**64 - 1]


@pytest.mark.parametrize("value", VALUES)
def test_integers_return_unchanged(value: int) -> None:
    data = b"\xff" + varint(value) + b"\xff"

    assert read_varint(data, 1, len(data)) == (value, len(data) - 1)


def test_integers_are_protobufs() -> None:
    assert varint(300) == b"\xac\x02"
    assert varint(0) == b"\x00"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"\xff" * 9, b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x80" * 20 + b"\x01"],
)
def test_integers_that_do_not_end_or_fit_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidFrame, match="truncated or oversized integer"):
        read_varint(data, 0, len(data))


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"\x08\x05", (1, VARINT, 1, 2)),
        (b"\x08\x85\x01", (1, VARINT, 1, 3)),
        (b"\x12\x03abc", (2, LENGTH, 2, 5)),
        (b"\x12\x83\x00abc", (2, LENGTH, 3, 6)),
        (b"\x19" + bytes(8), (3, FIXED64, 1, 9)),
        (b"\x25" + bytes(4), (4, FIXED32, 1, 5)),
        (b"\x82\x01\x00", (16, LENGTH, 3, 3)),
    ],
)
def test_fields_are_found(data: bytes, want: tuple[int, int, int, int]) -> None:
    assert read_field(data + b"rest", 0, len(data) + 4) == want


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x12",
        b"\x12\x03ab",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x19" + bytes(7),
        b"\x25" + bytes(3),
        b"\x80",
        b"\x00\x00",
        b"\x02\x00",
        b"\x0b",
        b"\x0c",
        b"\x0e\x00",
        b"\x0f\x00",
    ],
)
def test_malformed_fields_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidFrame):
        read_field(data, 0, len(data))
