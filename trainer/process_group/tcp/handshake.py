"""How two ranks make sure of each other before the first frame.

    acceptor  -> connector   challenge: random bytes
    connector -> acceptor    hello: generation, world size, rank, random bytes; proof
    acceptor  -> connector   verdict; proof

A proof is an HMAC over all that was said, keyed with the generation's secret, which the
ranks have from the rendezvous: it never travels on this connection. Frames that follow are
neither encrypted nor signed: keep the trainers' network private.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final, final

from gradmesh.trainer.errors import HandshakeRefused

_MAGIC: Final = b"GMHS\x01"
_NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = hashlib.sha256().digest_size
_HELLO: Final = struct.Struct("<5sqii16s")
SECRET_BYTES: Final = 32


@final
@unique
class Verdict(IntEnum):
    """What the acceptor says to a hello."""

    WELCOME = 0
    WRONG_SECRET = 1
    WRONG_GENERATION = 2
    WRONG_WORLD_SIZE = 3
    WRONG_RANK = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """Who a rank is, and the secret that it shares with its peers."""

    generation: int
    """The membership this group belongs to."""
    world_size: int
    """How many ranks there are."""
    rank: int
    """This process's rank."""
    secret: bytes
    """Shared by the ranks of this group, and by nobody else."""


def greet(sock: socket.socket, identity: RankIdentity, acceptor: int, timeout_s: float) -> None:
    """Introduce ourselves to the rank `acceptor`, which we have connected to.

    Args:
        sock: The connection.
        identity: Who we are.
        acceptor: Whom we expect to answer.
        timeout_s: For the whole handshake.

    Raises:
        HandshakeRefused: It would not have us, or could not prove that it knows the secret.
        OSError: The connection broke or timed out.
    """
    deadline = time.monotonic() + timeout_s
    challenge = _receive(sock, _NONCE_BYTES, deadline)
    ours = secrets.token_bytes(_NONCE_BYTES)
    fields = (identity.generation, identity.world_size, identity.rank)
    hello = _HELLO.pack(_MAGIC, *fields, ours)
    sock.sendall(hello + _prove(identity.secret, b"connect", challenge, hello))
    answer = _receive(sock, 1 + _PROOF_BYTES, deadline)
    verdict, proof = answer[:1], answer[1:]
    if verdict != bytes([Verdict.WELCOME]):
        raise HandshakeRefused(
            f"rank {acceptor} refused rank {identity.rank} of generation {identity.generation}"
            f" with world size {identity.world_size}: {_name(verdict[0])};"
            " rejoin to learn the present generation"
        )
    expected = _prove(
        identity.secret, b"accept", challenge, hello, verdict, struct.pack("<i", acceptor)
    )
    if not hmac.compare_digest(proof, expected):
        raise HandshakeRefused(
            f"the process that answers for rank {acceptor} does not know this generation's"
            " secret; rejoin to learn the present addresses"
        )


def welcome(sock: socket.socket, identity: RankIdentity, timeout_s: float) -> int:
    """Hear the introduction of a process that connected to us; return its rank.

    Args:
        sock: The connection.
        identity: Who we are.
        timeout_s: For the whole handshake, so that a stranger cannot drag it out byte by byte.

    Raises:
        HandshakeRefused: It is not a peer of higher rank in this group; it was told so.
        OSError: The connection broke or timed out.
    """
    deadline = time.monotonic() + timeout_s
    sock.settimeout(timeout_s)
    challenge = secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(challenge)
    heard = _receive(sock, _HELLO.size + _PROOF_BYTES, deadline)
    hello, proof = heard[: _HELLO.size], heard[_HELLO.size :]
    expected = _prove(identity.secret, b"connect", challenge, hello)
    genuine = hmac.compare_digest(proof, expected)
    verdict = _judge(hello, identity) if genuine else Verdict.WRONG_SECRET
    said = bytes([verdict])
    parts = (b"accept", challenge, hello, said, struct.pack("<i", identity.rank))
    sock.sendall(said + _prove(identity.secret, *parts))
    rank = int(_HELLO.unpack(hello)[3])
    if verdict is not Verdict.WELCOME:
        raise HandshakeRefused(
            f"refused a connection that calls itself rank {rank}: {_name(verdict)}"
        )
    return rank


def _judge(hello: bytes, identity: RankIdentity) -> Verdict:
    magic, generation, world_size, rank, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        return Verdict.WRONG_SECRET
    if generation != identity.generation:
        return Verdict.WRONG_GENERATION
    if world_size != identity.world_size:
        return Verdict.WRONG_WORLD_SIZE
    # The higher rank connects to the lower one, so each pair has one connection.
    return Verdict.WELCOME if identity.rank < rank < world_size else Verdict.WRONG_RANK


def _prove(secret: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, b"".join(parts), "sha256")


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other side closed the connection in the handshake")
        data += part
    return data


def _name(verdict: int) -> str:
    known = {item.value: item.name.lower().replace("_", " ") for item in Verdict}
    return known.get(verdict, f"unknown verdict {verdict}")
