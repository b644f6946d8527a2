"""Looking before sleeping: what it finds, when it stops, and what closing does meanwhile."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gradmesh.sdk.transport.lane import look
from gradmesh.sdk.transport.lane.look import Eagerness
from gradmesh.sdk.transport.lane.stream import LaneBroken, PlainStream


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_bytes_that_are_there_are_found(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    assert Eagerness(64).look(ours.fileno()) == b"hello"


def test_no_more_than_the_size_is_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    eager = Eagerness(3)
    assert [eager.look(ours.fileno()), eager.look(ours.fileno())] == [b"hel", b"lo"]


def test_the_end_of_the_stream_is_no_silence(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert Eagerness(64).look(ours.fileno()) == b""
    with pytest.raises(LaneBroken):
        PlainStream(ours, Eagerness(64)).receive_bytes(64, time.monotonic() + 5)


def test_looking_in_vain_makes_the_next_waits_sleep(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    eager = Eagerness(64)
    assert eager.look(ours.fileno()) is None
    theirs.send(b"late")
    # Two waits sleep at once, the third looks.
    assert [eager.look(ours.fileno()) for _ in range(3)] == [None, None, b"late"]
    # It paid, so that the next one looks, too.
    theirs.send(b"next")
    assert eager.look(ours.fileno()) == b"next"


def test_a_stream_sleeps_where_looking_does_not_help(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    stream = PlainStream(ours, Eagerness(64))
    threading.Timer(0.05, theirs.send, [b"slow"]).start()
    assert stream.receive_bytes(64, time.monotonic() + 30) == b"slow"


def test_one_thread_looks_at_a_time(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    taken = threading.Lock()
    taken.acquire()
    monkeypatch.setattr(look, "_looking", taken)
    eager = Eagerness(64)
    assert eager.look(ours.fileno()) is None
    taken.release()
    # It was not in vain: it did not look at all.
    assert eager.look(ours.fileno()) == b"hello"


def test_closing_under_a_look_leaves_the_descriptor_to_it(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = pair
    monkeypatch.setattr(look, "LOOK_NS", 20_000_000_000)
    stream = PlainStream(ours, Eagerness(64))
    broken = threading.Event()

    def receive() -> None:
        with pytest.raises(LaneBroken):
            stream.receive_bytes(64, time.monotonic() + 30)
        broken.set()

    thread = threading.Thread(target=receive)
    thread.start()
    while not look._looking.locked():
        time.sleep(0.001)
    stream.close()
    # Had it been closed at once, the number could belong to another connection by now.
    assert broken.wait(15)
    thread.join()
    stream.close()
    assert ours.fileno() == -1
