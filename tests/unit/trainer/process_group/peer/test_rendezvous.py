import contextlib
import dataclasses
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradmesh.trainer.errors import CollectiveTimeout, HandshakeRefused, PeerLost
from gradmesh.trainer.process_group.peer.handshake import Newcomer, RankIdentity, greet
from gradmesh.trainer.process_group.peer.rendezvous import Endpoint, connect_mesh, share_secret

WHO = RankIdentity(generation=7, world_size=3, rank=1, secret=b"s" * 32)


class MemoryStore:
    def __init__(self):
        self.values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key, timeout_s):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_s):
                raise TimeoutError(key)
            return self.values[key]


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        theirs.settimeout(20)
        yield ours, theirs


def welcome(sock, identity):
    """Answer one process that connects; return its rank, -1 if it was refused."""
    newcomer = Newcomer(identity)
    sock.sendall(newcomer.challenge)
    while newcomer.missing:
        data = sock.recv(newcomer.missing)
        assert data
        newcomer.receive(data)
    sock.sendall(newcomer.answer())
    return newcomer.rank


def trickle(sock):
    for _ in range(1000):
        sock.sendall(b"x")
        threading.Event().wait(0.05)


def address_of(store, rank):
    return tuple(json.loads(store.get(f"process_group/address/{rank}", 20)))


def test_peer_is_welcomed(pair, pool):
    newcomer = dataclasses.replace(WHO, rank=2)

    welcomed = pool.submit(welcome, pair[0], WHO)
    greet(pair[1], newcomer, WHO.rank, 20.0)

    assert welcomed.result(30) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generation": 6}, "wrong generation"),
        ({"world_size": 4}, "wrong world size"),
        ({"rank": 1}, "wrong rank"),
        ({"rank": 0}, "wrong rank"),
        ({"rank": 3}, "wrong rank"),
        ({"rank": -1}, "wrong rank"),
        ({"secret": b"t" * 32}, "wrong secret"),
        ({"group": "sub_group/1-0-1"}, "wrong secret"),
    ],
)
def test_an_unknown_peer_is_refused_with_the_reason(pair, pool, change, words):
    stranger = dataclasses.replace(WHO, **{"rank": 2, **change})

    welcomed = pool.submit(welcome, pair[0], WHO)

    with pytest.raises(HandshakeRefused, match=words):
        greet(pair[1], stranger, WHO.rank, 20.0)
    assert welcomed.result(30) == -1


def test_an_impostor_without_the_secret_is_refused(pair, pool):
    def impostor():
        pair[0].sendall(bytes(32))
        pair[0].recv(1000)
        pair[0].sendall(bytes(33))

    pool.submit(impostor)

    with pytest.raises(HandshakeRefused, match="secret"):
        greet(pair[1], dataclasses.replace(WHO, rank=2), WHO.rank, 20.0)


def test_a_hello_for_another_acceptor_is_refused(pair, pool):
    newcomer = dataclasses.replace(WHO, rank=2)

    welcomed = pool.submit(welcome, pair[0], WHO)

    with pytest.raises(HandshakeRefused, match="wrong rank"):
        greet(pair[1], newcomer, 0, 20.0)
    assert welcomed.result(30) == -1


def test_a_peer_that_sends_slowly_is_disconnected(store, pool, monkeypatch):
    monkeypatch.setattr("gradmesh.trainer.process_group.peer.acceptor.HANDSHAKE_S", 0.3)
    first = dataclasses.replace(WHO, rank=0, world_size=2)
    mesh = pool.submit(connect_mesh, store, first, Endpoint(), 20.0)

    with socket.create_connection(address_of(store, 0), 20) as slow:
        with pytest.raises(ConnectionError):
            trickle(slow)
        assert not mesh.done()
    other = connect_mesh(store, dataclasses.replace(first, rank=1), Endpoint(), 20.0)

    for link in [*mesh.result(30).values(), *other.values()]:
        link.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_ranks_meet_at_any_kind_of_address(store, pool, host):
    first = dataclasses.replace(WHO, rank=0, world_size=2)
    endpoint = Endpoint(listen_host=host)

    mesh = pool.submit(connect_mesh, store, first, endpoint, 20.0)
    other = connect_mesh(store, dataclasses.replace(first, rank=1), endpoint, 20.0)

    for link in [*mesh.result(30).values(), *other.values()]:
        link.close()


def test_secret_is_the_same_on_all_ranks_and_never_the_same_twice(store):
    first = share_secret(store, 0, 1)
    second = share_secret(MemoryStore(), 0, 1)

    assert share_secret(store, 1, 1) == first
    assert first != second
    assert len(first) == 32


def test_rank_that_never_comes_is_named(store):
    with pytest.raises(CollectiveTimeout, match="rank 1, 2 did not connect") as caught:
        connect_mesh(store, dataclasses.replace(WHO, rank=0, world_size=3), Endpoint(), 0.0)
    assert caught.value.ranks == (1, 2)


def test_rank_that_never_publishes_is_named(store):
    with pytest.raises(CollectiveTimeout, match="rank 0 did not publish") as caught:
        connect_mesh(store, WHO, Endpoint(), 0.05)

    assert caught.value.ranks == (0,)


def test_published_address_without_a_listener_is_named(store):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.set("process_group/address/0", json.dumps(["127.0.0.1", port]).encode())

    with pytest.raises(PeerLost, match=f"rank 0 published the address 127.0.0.1:{port}"):
        connect_mesh(store, WHO, Endpoint(), 20.0)


def test_unknown_connections_do_not_block_peers(store, pool):
    first = dataclasses.replace(WHO, rank=0, world_size=2)
    mesh = pool.submit(connect_mesh, store, first, Endpoint(), 25.0)
    address = address_of(store, 0)

    with contextlib.ExitStack() as strangers:
        for _ in range(5):
            strangers.enter_context(socket.create_connection(address))
        noisy = strangers.enter_context(socket.create_connection(address))
        noisy.sendall(b"GET / HTTP/1.1\r\n" * 20)
        # One stranger after the other would take 5 s each, longer than the ranks wait.
        other = connect_mesh(store, dataclasses.replace(first, rank=1), Endpoint(), 25.0)

        assert list(mesh.result(30)) == [1]
        assert list(other) == [0]
    for link in [*mesh.result().values(), *other.values()]:
        link.close()


def test_advertised_host_is_what_peers_see(store):
    endpoint = Endpoint(listen_host="127.0.0.1", advertise_host="trainer-0.example")

    connect_mesh(store, dataclasses.replace(WHO, rank=0, world_size=1), endpoint, 20.0)

    assert address_of(store, 0)[0] == "trainer-0.example"
