"""The handshake of two ranks, before the first frame.

    acceptor  -> connector   challenge: random bytes
    connector -> acceptor    hello: generation, world size, rank, random bytes; proof
    acceptor  -> connector   verdict; proof

A proof is an HMAC over all messages so far, keyed with the generation's secret. Ranks get the
secret from the rendezvous store: it is never sent over this connection. Frames that follow are
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
    """The acceptor's answer to a hello."""

    WELCOME = 0
    WRONG_SECRET = 1
    WRONG_GENERATION = 2
    WRONG_WORLD_SIZE = 3
    WRONG_RANK = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """Rank, world size and generation of a process, and the secret shared with its peers."""

    generation: int
    """The generation of the group."""
    world_size: int
    """Number of ranks."""
    rank: int
    """This process's rank."""
    secret: bytes
    """Known only to the ranks of this group."""


def greet(sock: socket.socket, identity: RankIdentity, acceptor: int, timeout_s: float) -> None:
    """Authenticate to the rank `acceptor`, after connecting to it.

    Args:
        sock: The connection.
        identity: This process's identity.
        acceptor: The rank expected to answer.
        timeout_s: Longest time for the whole handshake.

    Raises:
        HandshakeRefused: It refused this rank, or did not prove that it has the secret.
        OSError: The connection broke or timed out.
    """
    deadline = time.monotonic() + timeout_s
    challenge = _receive(sock, _NONCE_BYTES, deadline)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    fields = (identity.generation, identity.world_size, identity.rank)
    hello = _HELLO.pack(_MAGIC, *fields, nonce)
    sock.sendall(hello + _proof(identity.secret, b"connect", challenge, hello))
    answer = _receive(sock, 1 + _PROOF_BYTES, deadline)
    verdict, proof = answer[:1], answer[1:]
    if verdict != bytes([Verdict.WELCOME]):
        raise HandshakeRefused(
            f"rank {acceptor} refused rank {identity.rank} of generation {identity.generation}"
            f" with world size {identity.world_size}: {_name(verdict[0])};"
            " rejoin to get the current generation"
        )
    expected = _proof(
        identity.secret, b"accept", challenge, hello, verdict, struct.pack("<i", acceptor)
    )
    if not hmac.compare_digest(proof, expected):
        raise HandshakeRefused(
            f"the process that answers for rank {acceptor} does not have this generation's"
            " secret; rejoin to get the current addresses"
        )


def welcome(sock: socket.socket, identity: RankIdentity, timeout_s: float) -> int:
    """Authenticate a process that connected to this one; return its rank.

    Args:
        sock: The connection.
        identity: This process's identity.
        timeout_s: Longest time for the whole handshake, even if bytes arrive one by one.

    Raises:
        HandshakeRefused: It is not a peer of higher rank in this group; it gets the verdict, too.
        OSError: The connection broke or timed out.
    """
    deadline = time.monotonic() + timeout_s
    sock.settimeout(timeout_s)
    challenge = secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(challenge)
    received = _receive(sock, _HELLO.size + _PROOF_BYTES, deadline)
    hello, proof = received[: _HELLO.size], received[_HELLO.size :]
    expected = _proof(identity.secret, b"connect", challenge, hello)
    genuine = hmac.compare_digest(proof, expected)
    verdict = _verdict_on(hello, identity) if genuine else Verdict.WRONG_SECRET
    answer = bytes([verdict])
    parts = (b"accept", challenge, hello, answer, struct.pack("<i", identity.rank))
    sock.sendall(answer + _proof(identity.secret, *parts))
    rank = int(_HELLO.unpack(hello)[3])
    if verdict is not Verdict.WELCOME:
        raise HandshakeRefused(
            f"refused a connection that calls itself rank {rank}: {_name(verdict)}"
        )
    return rank


def _verdict_on(hello: bytes, identity: RankIdentity) -> Verdict:
    magic, generation, world_size, rank, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        return Verdict.WRONG_SECRET
    if generation != identity.generation:
        return Verdict.WRONG_GENERATION
    if world_size != identity.world_size:
        return Verdict.WRONG_WORLD_SIZE
    # The higher rank connects to the lower one, so each pair has one connection.
    return Verdict.WELCOME if identity.rank < rank < world_size else Verdict.WRONG_RANK


def _proof(secret: bytes, *parts: bytes) -> bytes:
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
