import socket
import time

import pytest

from gradmesh.trainer.errors import CollectiveMismatch, CollectiveTimeout, PeerLost
from gradmesh.trainer.process_group.message import MessageKind
from gradmesh.trainer.process_group.peer.link import PeerLink


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    links = PeerLink(near, 1, "far:1"), PeerLink(far, 0, "near:0")
    yield links
    for link in links:
        link.close()


@pytest.fixture
def eventually_fails():
    """Repeat a call until it raises, for at most 30 s."""

    def repeat(call):
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            call()

    return repeat


def receive(link, text, count):
    target = bytearray(count)
    link.start_receive(text, [memoryview(target)])
    while link.is_receiving():
        link.receive_some()
    return bytes(target)


@pytest.mark.parametrize("payload", [b"", b"abc", bytes(10_000)])
def test_frame_arrives(pair, payload):
    near, far = pair

    near.start_send("hello", [memoryview(payload)])
    near.send_some()

    assert not near.is_sending()
    assert receive(far, "hello", len(payload)) == payload
    assert near.bytes_moved == far.bytes_moved


def test_frame_bigger_than_the_kernel_buffers_is_sent_in_parts(pair):
    near, far = pair
    payload = bytes(range(256)) * 100_000
    target = bytearray(len(payload))

    near.start_send("big", [memoryview(payload)])
    far.start_receive("big", [memoryview(target)])
    while near.is_sending() or far.is_receiving():
        near.send_some()
        far.receive_some()

    assert target == payload


def test_next_frame_is_left_in_the_kernel(pair):
    near, far = pair
    for payload in (b"one", b"two"):
        near.start_send("frame", [memoryview(payload)])
        near.send_some()

    assert receive(far, "frame", 3) == b"one"
    assert receive(far, "frame", 3) == b"two"


@pytest.mark.parametrize(("text", "count"), [("other", 3), ("hello", 4)])
def test_unexpected_frame_is_a_mismatch_that_names_both(pair, text, count):
    near, far = pair
    near.start_send("hello", [memoryview(b"abc")])
    near.send_some()

    with pytest.raises(CollectiveMismatch, match="hello with 3 bytes") as caught:
        receive(far, text, count)

    assert f"{text} with {count} bytes" in str(caught.value)


def test_unexpected_bytes_close_the_link(pair):
    near, far = pair
    near.sock.sendall(b"GET / HTTP/1.1\r\n" * 10)

    with pytest.raises(PeerLost, match="not a frame"):
        receive(far, "hello", 3)


def test_end_of_connection_loses_the_peer(pair):
    near, far = pair
    near.close()

    with pytest.raises(PeerLost, match="rank 0 at near:0") as caught:
        receive(far, "hello", 3)

    assert (caught.value.rank, caught.value.address) == (0, "near:0")


@pytest.mark.parametrize(
    ("kind", "about", "error", "words"),
    [
        (MessageKind.CLOSED, 0, PeerLost, "closed"),
        (MessageKind.ABORTED, 0, PeerLost, "aborted"),
        (MessageKind.PEER_LOST, 2, PeerLost, "rank 2"),
        (MessageKind.TIMED_OUT, 2, CollectiveTimeout, "rank 2"),
        (MessageKind.MISMATCH, 0, CollectiveMismatch, "different"),
    ],
)
def test_reason_for_leaving_becomes_the_error(pair, kind, about, error, words):
    near, far = pair
    near.start_shutdown(kind, about)
    near.flush()
    near.close()

    with pytest.raises(error, match=words):
        receive(far, "hello", 3)


def test_a_closing_frame_follows_a_partly_sent_frame(pair):
    near, far = pair
    payload = bytes(8_000_000)
    target = bytearray(len(payload))
    near.start_send("big", [memoryview(payload)])
    near.send_some()
    assert near.is_sending()

    near.start_shutdown(MessageKind.PEER_LOST, 2)
    far.start_receive("big", [memoryview(target)])
    while near.flush() or far.is_receiving():
        far.receive_some()
    assert target == payload
    near.close()

    with pytest.raises(PeerLost, match="lost rank 2") as caught:
        receive(far, "next", 3)
    assert caught.value.rank == 2


def test_the_closing_message_of_a_peer_is_read_when_sending_fails(pair, eventually_fails):
    near, far = pair
    far.start_send("late", [memoryview(bytes(8_000_000))])
    far.send_some()

    # Closing with data unread resets the connection, so that the next send fails.
    near.start_shutdown(MessageKind.TIMED_OUT, 2)
    near.flush()
    near.close()

    with pytest.raises(CollectiveTimeout, match="rank 2"):
        eventually_fails(far.send_some)
