"""Spin-wait: bytes it finds, back-off, and closing during a spin."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradmesh.sdk.transport.lane import spin
from gradmesh.sdk.transport.lane.spin import SpinWait
from gradmesh.sdk.transport.lane.stream import LaneBroken, PlainStream


def _poll_until_something_comes(once: Callable[..., int]) -> Callable[..., int]:
    def poll_on(*arguments: Any) -> int:
        while (got := once(*arguments)) < 0:
            pass
        return got

    return poll_on


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_available_bytes_are_returned(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    assert SpinWait(64).poll(ours.fileno()) == b"hello"


def test_no_more_than_the_size_is_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    spin_wait = SpinWait(3)
    assert [spin_wait.poll(ours.fileno()), spin_wait.poll(ours.fileno())] == [b"hel", b"lo"]


def test_the_end_of_the_stream_is_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert SpinWait(64).poll(ours.fileno()) == b""
    with pytest.raises(LaneBroken):
        PlainStream(ours, SpinWait(64)).receive_bytes(64, time.monotonic() + 30)


def test_after_a_spin_in_vain_the_next_waits_block(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    spin_wait = SpinWait(64)
    assert spin_wait.poll(ours.fileno()) is None
    theirs.send(b"late")
    # Four waits block at once, the fifth spins.
    assert [spin_wait.poll(ours.fileno()) for _ in range(5)] == [None] * 4 + [b"late"]
    # It succeeded, so the next one spins, too.
    theirs.send(b"next")
    assert spin_wait.poll(ours.fileno()) == b"next"


def test_the_back_off_grows_to_a_bound(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = pair
    spin_wait = SpinWait(64)
    skipped = []
    for _ in range(4):
        assert spin_wait.poll(ours.fileno()) is None
        skipped.append(spin_wait._skip)
        spin_wait._skip = 0
    assert skipped == [4, 16, 64, 64]


def test_no_spin_where_waits_are_long(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    spin_wait = SpinWait(64)
    for _ in range(10):
        spin_wait.record(10_000_000)
    assert spin_wait.poll(ours.fileno()) is None
    for _ in range(20):
        spin_wait.record(10_000)
    assert spin_wait.poll(ours.fileno()) == b"hello"


def test_a_stream_blocks_after_a_spin_in_vain(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    stream = PlainStream(ours, SpinWait(64))
    threading.Timer(0.05, theirs.send, [b"slow"]).start()
    assert stream.receive_bytes(64, time.monotonic() + 30) == b"slow"


def test_one_thread_spins_at_a_time(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    taken = threading.Lock()
    taken.acquire()
    monkeypatch.setattr(spin, "_spinning", taken)
    spin_wait = SpinWait(64)
    assert spin_wait.poll(ours.fileno()) is None
    taken.release()
    # It did not spin at all, so there is no back-off.
    assert spin_wait.poll(ours.fileno()) == b"hello"


def test_closing_under_a_spin_leaves_the_descriptor_to_it(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = pair
    # Spin without limit, so that the test does not depend on the machine.
    monkeypatch.setattr(spin, "_poll", _poll_until_something_comes(spin._poll))
    stream = PlainStream(ours, SpinWait(64))
    broken = threading.Event()

    def receive() -> None:
        with pytest.raises(LaneBroken):
            stream.receive_bytes(64, time.monotonic() + 30)
        broken.set()

    thread = threading.Thread(target=receive)
    thread.start()
    while not spin._spinning.locked():
        time.sleep(0.001)
    stream.close()
    # Closed at once, the descriptor could be reused by another connection.
    assert broken.wait(120)
    thread.join()
    stream.close()
    assert ours.fileno() == -1


def test_a_stream_that_is_closed_under_a_spin_is_closed_after_it() -> None:
    here, there = socket.socketpair()
    spins, goes_on = threading.Event(), threading.Event()

    class Spinning:
        def poll(self, fd: int) -> bytes:
            spins.set()
            goes_on.wait(120)
            return b""  # as at the end of a connection

        def record(self, nanoseconds: int) -> None:
            raise AssertionError("nothing came")

    stream = PlainStream(here, Spinning())  # type: ignore[arg-type]

    def read() -> None:
        with pytest.raises(LaneBroken):
            stream.receive_bytes(10, time.monotonic() + 10)

    reader = threading.Thread(target=read)
    reader.start()
    assert spins.wait(120)
    stream.close()
    assert here.fileno() >= 0
    goes_on.set()
    reader.join(10)

    assert here.fileno() < 0
    there.close()
