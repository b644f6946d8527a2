import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupClosed,
    PeerLost,
)
from gradmesh.trainer.process_group.message import (
    HEADER_BYTES,
    MessageHeader,
    MessageKind,
    pack_header,
    shutdown_error,
    shutdown_reason,
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


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PeerLost("gone", rank=3, address="x"), (MessageKind.PEER_LOST, 3)),
        (CollectiveTimeout("late", ranks=[2, 4]), (MessageKind.TIMED_OUT, 2)),
        (CollectiveTimeout("late"), (MessageKind.TIMED_OUT, 1)),
        (CollectiveMismatch("other"), (MessageKind.MISMATCH, 1)),
        (GroupClosed("over"), (MessageKind.CLOSED, 1)),
        (GroupAborted("stop"), (MessageKind.ABORTED, 1)),
        (ZeroDivisionError(), (MessageKind.ABORTED, 1)),
    ],
)
def test_reason_names_the_rank_it_is_about(error, reason):
    assert shutdown_reason(error, 1) == reason


@pytest.mark.parametrize(
    ("kind", "about", "error", "named"),
    [
        (MessageKind.PEER_LOST, 3, PeerLost, 3),
        (MessageKind.PEER_LOST, 1, PeerLost, 1),
        (MessageKind.ABORTED, 1, PeerLost, 1),
        (MessageKind.CLOSED, 1, PeerLost, 1),
    ],
)
def test_peers_name_the_failed_rank(kind, about, error, named):
    found = shutdown_error(kind, about, 1, "there")

    assert isinstance(found, error)
    assert found.rank == named


def test_timeout_of_a_peer_names_whom_it_waited_for():
    found = shutdown_error(MessageKind.TIMED_OUT, 4, 1, "there")

    assert isinstance(found, CollectiveTimeout)
    assert found.ranks == (4,)
