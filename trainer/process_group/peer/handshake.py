"""The handshake of two ranks, before the first frame.

    acceptor  -> connector   challenge: random bytes
    connector -> acceptor    hello: generation, world size, both ranks, random bytes; proof
    acceptor  -> connector   verdict; proof
    both                     with TLS: the TLS handshake, then a proof of each over it

A proof is an HMAC over the group's name, the direction and all messages so far, keyed with the
generation's secret. Ranks get the secret from the rendezvous store: it is never sent over this
connection. Until the first proof a connection costs its acceptor one HMAC; TLS comes after it, and
its proofs cover the TLS handshake, so that no process between the two can relay them.
"""

import hmac
import secrets
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final, final

from gradmesh.trainer.errors import HandshakeRefused

_MAGIC: Final = b"GMHS\x02"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
# Magic, whether it uses TLS, generation, world size, rank, rank of the acceptor, random bytes.
_HELLO: Final = struct.Struct(f"<5s?qiii{_NONCE_BYTES}s")
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
    OTHER_TLS_SETTING = 5


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
    group: str = ""
    """Name of a sub-group; empty for the group of the whole generation."""

    def prove(self, direction: bytes, *parts: bytes) -> bytes:
        """Return the proof that this process has the secret and has seen some messages."""
        text = self.group.encode()
        # With its length, so that no other group's name and message make the same bytes.
        whole = b"".join((direction, struct.pack("<I", len(text)), text, *parts))
        return hmac.digest(self.secret, whole, "sha256")


def greet(
    sock: socket.socket,
    identity: RankIdentity,
    acceptor: int,
    timeout_s: float,
    tls: tuple[ssl.SSLContext, str] | None = None,
) -> socket.socket:
    """Authenticate to the rank `acceptor`, after connecting to it; return the connection to use.

    Args:
        sock: The connection.
        identity: This process's identity.
        acceptor: The rank expected to answer.
        timeout_s: Longest time for the whole handshake.
        tls: How to encrypt it, and the host name in the acceptor's certificate; None for plaintext.

    Raises:
        HandshakeRefused: It refused this rank, or did not prove that it has the secret.
        OSError: The connection broke or timed out.
    """
    deadline = time.monotonic() + timeout_s
    challenge = _receive(sock, _NONCE_BYTES, deadline)
    fields = (identity.generation, identity.world_size, identity.rank, acceptor)
    hello = _HELLO.pack(_MAGIC, tls is not None, *fields, secrets.token_bytes(_NONCE_BYTES))
    sock.sendall(hello + identity.prove(b"connect", challenge, hello))
    answer = _receive(sock, 1 + _PROOF_BYTES, deadline)
    verdict, proof = answer[:1], answer[1:]
    if verdict != bytes([Verdict.WELCOME]):
        raise HandshakeRefused(
            f"rank {acceptor} refused rank {identity.rank} of generation {identity.generation}"
            f" with world size {identity.world_size}: {_name(verdict[0])};"
            " rejoin to get the current generation"
        )
    if not hmac.compare_digest(proof, identity.prove(b"accept", challenge, hello, verdict)):
        raise _impostor(acceptor)
    if tls is None:
        return sock
    try:
        return _seal(sock, identity, acceptor, deadline, tls, (challenge, hello, verdict))
    except OSError as error:
        if isinstance(error, HandshakeRefused):
            raise
        # Not a crowd of strangers: the rank has answered, so that connecting again is in vain.
        raise HandshakeRefused(
            f"the encrypted connection to rank {acceptor} failed ({error}); compare the"
            " certificates of both ranks in [security], then rejoin"
        ) from error


def _seal(
    sock: socket.socket,
    identity: RankIdentity,
    acceptor: int,
    deadline: float,
    tls: tuple[ssl.SSLContext, str],
    seen: tuple[bytes, ...],
) -> socket.socket:
    """Encrypt the connection to an acceptor that has proved itself in the messages `seen`."""
    sealed = _encrypt(sock, tls[0], deadline, tls[1])
    try:
        seen = (*seen, _binding(sealed))
        sealed.sendall(identity.prove(b"sealed connect", *seen))
        proof = _receive(sealed, _PROOF_BYTES, deadline)
        if not hmac.compare_digest(proof, identity.prove(b"sealed accept", *seen)):
            raise _impostor(acceptor)
    except BaseException:
        sealed.close()
        raise
    return sealed


@final
class Newcomer:
    """A process that has connected to this one: the acceptor's half of the handshake.

    Args:
        identity: This process's identity.
        uses_tls: Whether this group encrypts its connections.

    Attributes:
        challenge: The first message, to be sent to it.
        rank: The rank that it has proved to be; -1 before.
    """

    def __init__(self, identity: RankIdentity, uses_tls: bool = False) -> None:
        self._identity = identity
        self._uses_tls = uses_tls
        self.challenge = secrets.token_bytes(_NONCE_BYTES)
        self.rank = -1
        self._received = b""
        self._verdict = b""

    @property
    def missing(self) -> int:
        """Number of bytes of its hello that have not been received."""
        return _HELLO.size + _PROOF_BYTES - len(self._received)

    def receive(self, data: bytes) -> None:
        """Take bytes that it has sent, at most those that are missing."""
        self._received += data

    def answer(self) -> bytes:
        """Return the answer to its complete hello; if it is a peer, its rank is known then."""
        hello, proof = self._received[: _HELLO.size], self._received[_HELLO.size :]
        expected = self._identity.prove(b"connect", self.challenge, hello)
        genuine = hmac.compare_digest(proof, expected)
        verdict = self._judge(hello) if genuine else Verdict.WRONG_SECRET
        self._verdict = bytes([verdict])
        if verdict is Verdict.WELCOME:
            self.rank = int(_HELLO.unpack(hello)[4])
        if not genuine:
            # Nothing is signed for a process without the secret.
            return self._verdict + bytes(_PROOF_BYTES)
        return self._verdict + self._identity.prove(b"accept", self.challenge, hello, self._verdict)

    def seal(self, sock: socket.socket, context: ssl.SSLContext, timeout_s: float) -> socket.socket:
        """Encrypt the connection of a peer whose rank is known; return the connection to use.

        Raises:
            HandshakeRefused: Another process is between this one and the peer.
            OSError: The connection broke or timed out, or TLS failed.
        """
        deadline = time.monotonic() + timeout_s
        sealed = _encrypt(sock, context, deadline)
        try:
            hello = self._received[: _HELLO.size]
            seen = (self.challenge, hello, self._verdict, _binding(sealed))
            proof = _receive(sealed, _PROOF_BYTES, deadline)
            if not hmac.compare_digest(proof, self._identity.prove(b"sealed connect", *seen)):
                raise HandshakeRefused(f"the encrypted connection is not that of rank {self.rank}")
            sealed.sendall(self._identity.prove(b"sealed accept", *seen))
        except BaseException:
            sealed.close()
            raise
        return sealed

    def _judge(self, hello: bytes) -> Verdict:
        magic, uses_tls, generation, world_size, rank, acceptor, _ = _HELLO.unpack(hello)
        identity = self._identity
        if magic != _MAGIC:
            return Verdict.WRONG_SECRET
        if generation != identity.generation:
            return Verdict.WRONG_GENERATION
        if world_size != identity.world_size:
            return Verdict.WRONG_WORLD_SIZE
        # The higher rank connects to the lower one, so each pair has one connection.
        if acceptor != identity.rank or not identity.rank < rank < world_size:
            return Verdict.WRONG_RANK
        return Verdict.WELCOME if uses_tls == self._uses_tls else Verdict.OTHER_TLS_SETTING


def _encrypt(
    sock: socket.socket, context: ssl.SSLContext, deadline: float, host: str | None = None
) -> ssl.SSLSocket:
    """Do the TLS handshake, as the client of `host` or as the server."""
    sock.settimeout(max(0.001, deadline - time.monotonic()))
    return context.wrap_socket(sock, server_side=host is None, server_hostname=host)


def _binding(sealed: socket.socket) -> bytes:
    """Return bytes that are equal at both ends of one TLS connection, and only there."""
    assert isinstance(sealed, ssl.SSLSocket)
    binding = sealed.get_channel_binding("tls-unique")
    if not binding:
        raise ssl.SSLError("TLS gives nothing to bind the connection to")
    return binding


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other side closed the connection in the handshake")
        data += part
    return data


def _impostor(acceptor: int) -> HandshakeRefused:
    return HandshakeRefused(
        f"the process that answers for rank {acceptor} does not have this generation's"
        " secret; rejoin to get the current addresses"
    )


def _name(verdict: int) -> str:
    known = {item.value: item.name.lower().replace("_", " ") for item in Verdict}
    return known.get(verdict, f"unknown verdict {verdict}")
