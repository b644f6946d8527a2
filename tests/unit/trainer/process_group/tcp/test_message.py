import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmesh.trainer.process_group.message import (
    HEADER_BYTES,
    MessageHeader,
    MessageKind,
    pack_header,
    unpack_header,
)


@given(
    st.sampled_from(MessageKind),
    st.integers(-1, 2**40),
    st.integers(0, 2**50),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=72),
)
def test_header_survives_the_wire(kind, number, payload_bytes, text):
    header = MessageHeader(kind, number, payload_bytes, text)

    assert unpack_header(pack_header(header)) == header


def test_long_text_is_cut():
    packed = pack_header(MessageHeader(MessageKind.DATA, 0, 0, "x" * 500))

    assert len(packed) == HEADER_BYTES
    assert unpack_header(packed).text == "x" * 72


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_refused(data):
    with pytest.raises(ValueError, match="frame"):
        unpack_header(data)


def test_unknown_kind_is_refused():
    packed = bytearray(pack_header(MessageHeader(MessageKind.DATA, 0, 0, "")))
    packed[4] = 99

    with pytest.raises(ValueError, match="99"):
        unpack_header(packed)
