"""The oldest of too many connections is closed."""

import socket
from collections.abc import Iterator

import pytest

from gradmesh.sdk.process.newest_sockets import NewestSockets


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    pairs = [socket.socketpair() for _ in range(4)]
    yield pairs
    for pair in pairs:
        for sock in pair:
            sock.close()


def is_open(far: socket.socket) -> bool:
    far.setblocking(False)
    try:
        return far.recv(1) != b""
    except BlockingIOError:
        return True


def test_the_oldest_is_shut_down(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    newest = NewestSockets(2)

    for near, _ in pairs[:3]:
        newest.add(near)

    assert [is_open(far) for _, far in pairs[:3]] == [False, True, True]


def test_one_that_has_ended_counts_no_more(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    newest = NewestSockets(2)
    for near, _ in pairs[:2]:
        newest.add(near)

    newest.remove(pairs[0][0])
    newest.remove(pairs[0][0])
    newest.add(pairs[2][0])

    assert all(is_open(far) for _, far in pairs)


def test_a_connection_keeps_its_place_under_another_object(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    newest = NewestSockets(2)
    (old, _), (other, _), (new, _), (last, _) = pairs
    newest.add(old)
    newest.replace(old, new)
    newest.add(other)

    newest.add(last)

    assert [is_open(far) for _, far in pairs] == [True, True, False, True]
