"""Tickets: what the coordinator signs so that one process may call another for a few minutes.

A ticket is bound to its audience, to the caller and to an expiry by the coordinator's clock. It is
signed under the session key that the audience registered with, which only the audience and the
coordinator have. So a ticket is useless anywhere but at its audience, and after the audience has
restarted.
"""

import hmac
from dataclasses import dataclass
from typing import final

from google.protobuf.message import DecodeError

from gradmesh.protos.common.v1.worker_pb2 import WorkerId
from gradmesh.protos.coordinator.v1.ticket_pb2 import TicketClaims
from gradmesh.protos.errors import TicketRejected
from gradmesh.protos.limits import MAX_TICKET_BYTES

SESSION_BYTES = 32
"""Length of a session key."""

SESSION_METADATA = "gradmesh-session-bin"
"""Metadata with the session key of a member, for the coordinator only."""

TICKET_METADATA = "gradmesh-ticket-bin"
"""Metadata with a ticket, for any other process."""

TICKET_S = 900.0
"""Lifetime of a ticket."""

_VERSION = b"\x01"
_MAC_BYTES = 32
_HEAD_BYTES = len(_VERSION) + _MAC_BYTES


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket says.

    Args:
        audience: Name and incarnation of the member that accepts it.
        role: Role of the caller's token or certificate.
        caller: Name and incarnation of the caller; ("", 0) if it is not a member.
        member_role: Role of the caller as a member; empty if it is not one.
        expires_ms: When it expires, by the coordinator's clock.
    """

    audience: tuple[str, int]
    role: str
    caller: tuple[str, int]
    member_role: str
    expires_ms: int

    def sign(self, key: bytes) -> bytes:
        """Return the ticket, signed under the session key of its audience."""
        claims = TicketClaims(
            audience=WorkerId(name=self.audience[0], incarnation=self.audience[1]),
            role=self.role,
            caller=WorkerId(name=self.caller[0], incarnation=self.caller[1]),
            member_role=self.member_role,
            expires_ms=self.expires_ms,
        ).SerializeToString()
        return _VERSION + _mac(key, claims) + claims


def verify(data: bytes, key: bytes, audience: tuple[str, int], now_ms: float) -> Ticket:
    """Return what a ticket says.

    Args:
        data: The ticket.
        key: The session key of this process.
        audience: Name and incarnation of this process.
        now_ms: The coordinator's time.

    Raises:
        TicketRejected: It is not a ticket, for another process or incarnation, or expired.
    """
    mac, claims = data[len(_VERSION) : _HEAD_BYTES], data[_HEAD_BYTES:]
    is_sized = _HEAD_BYTES < len(data) <= MAX_TICKET_BYTES
    if not is_sized or not data.startswith(_VERSION) or not _is_mac(mac, key, claims):
        raise _rejected("is not signed for this process; it may have restarted", audience)
    ticket = _parse(claims, audience)
    if ticket.audience != audience:
        raise _rejected(f"is for {ticket.audience[0]!r}", audience)
    if now_ms >= ticket.expires_ms:
        raise _rejected("has expired", audience)
    return ticket


def _parse(claims: bytes, audience: tuple[str, int]) -> Ticket:
    try:
        said = TicketClaims.FromString(claims)
    except DecodeError:
        raise _rejected("cannot be read", audience) from None
    return Ticket(
        (said.audience.name, said.audience.incarnation),
        said.role,
        (said.caller.name, said.caller.incarnation),
        said.member_role,
        said.expires_ms,
    )


def _mac(key: bytes, claims: bytes) -> bytes:
    return hmac.digest(key, _VERSION + claims, "sha256")


def _is_mac(mac: bytes, key: bytes, claims: bytes) -> bool:
    return hmac.compare_digest(mac, _mac(key, claims))


def _rejected(why: str, audience: tuple[str, int]) -> TicketRejected:
    return TicketRejected(
        f"{audience[0]!r} accepts only tickets that the coordinator issued for it, and this one "
        f"{why}; ask the coordinator for a new one",
        audience=audience[0],
    )
