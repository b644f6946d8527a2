"""Looking before sleeping: what it finds, when it stops, and what closing does meanwhile."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradmesh.sdk.transport.lane import spin
from gradmesh.sdk.transport.lane.spin import SpinWait
from gradmesh.sdk.transport.lane.stream import LaneBroken, PlainStream


def _look_until_something_comes(once: Callable[..., int]) -> Callable[..., int]:
    def look_on(*arguments: Any) -> int:
        while (got := once(*arguments)) < 0:
            pass
        return got

    return look_on


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_bytes_that_are_there_are_found(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    assert SpinWait(64).look(ours.fileno()) == b"hello"


def test_no_more_than_the_size_is_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    eager = SpinWait(3)
    assert [eager.look(ours.fileno()), eager.look(ours.fileno())] == [b"hel", b"lo"]


def test_the_end_of_the_stream_is_no_silence(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert SpinWait(64).look(ours.fileno()) == b""
    with pytest.raises(LaneBroken):
        PlainStream(ours, SpinWait(64)).receive_bytes(64, time.monotonic() + 5)


def test_looking_in_vain_makes_the_next_waits_sleep(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    eager = SpinWait(64)
    assert eager.look(ours.fileno()) is None
    theirs.send(b"late")
    # Four waits sleep at once, the fifth looks.
    assert [eager.look(ours.fileno()) for _ in range(5)] == [None] * 4 + [b"late"]
    # It paid, so that the next one looks, too.
    theirs.send(b"next")
    assert eager.look(ours.fileno()) == b"next"


def test_looking_in_vain_again_and_again_is_given_up_for_long(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = pair
    eager = SpinWait(64)
    skipped = []
    for _ in range(4):
        assert eager.look(ours.fileno()) is None
        skipped.append(eager._skip)
        eager._skip = 0
    assert skipped == [4, 16, 64, 64]


def test_nobody_looks_where_waits_are_long(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    eager = SpinWait(64)
    for _ in range(10):
        eager.note(10_000_000)
    assert eager.look(ours.fileno()) is None
    for _ in range(20):
        eager.note(10_000)
    assert eager.look(ours.fileno()) == b"hello"


def test_a_stream_sleeps_where_looking_does_not_help(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    stream = PlainStream(ours, SpinWait(64))
    threading.Timer(0.05, theirs.send, [b"slow"]).start()
    assert stream.receive_bytes(64, time.monotonic() + 30) == b"slow"


def test_one_thread_looks_at_a_time(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    taken = threading.Lock()
    taken.acquire()
    monkeypatch.setattr(spin, "_looking", taken)
    eager = SpinWait(64)
    assert eager.look(ours.fileno()) is None
    taken.release()
    # It was not in vain: it did not look at all.
    assert eager.look(ours.fileno()) == b"hello"


def test_closing_under_a_look_leaves_the_descriptor_to_it(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = pair
    # As long as it takes, whatever the machine does meanwhile.
    monkeypatch.setattr(spin, "_look", _look_until_something_comes(spin._look))
    stream = PlainStream(ours, SpinWait(64))
    broken = threading.Event()

    def receive() -> None:
        with pytest.raises(LaneBroken):
            stream.receive_bytes(64, time.monotonic() + 30)
        broken.set()

    thread = threading.Thread(target=receive)
    thread.start()
    while not spin._looking.locked():
        time.sleep(0.001)
    stream.close()
    # Had it been closed at once, the number could belong to another connection by now.
    assert broken.wait(15)
    thread.join()
    stream.close()
    assert ours.fileno() == -1


def test_a_stream_that_is_closed_under_a_look_is_closed_after_it() -> None:
    here, there = socket.socketpair()
    looks, goes_on = threading.Event(), threading.Event()

    class Looking:
        def look(self, fd: int) -> bytes:
            looks.set()
            goes_on.wait(10)
            return b""  # as at the end of a connection

        def note(self, nanoseconds: int) -> None:
            raise AssertionError("nothing came")

    stream = PlainStream(here, Looking())  # type: ignore[arg-type]

    def read() -> None:
        with pytest.raises(LaneBroken):
            stream.receive_bytes(10, time.monotonic() + 10)

    reader = threading.Thread(target=read)
    reader.start()
    assert looks.wait(10)
    stream.close()
    assert here.fileno() >= 0
    goes_on.set()
    reader.join(10)

    assert here.fileno() < 0
    there.close()
