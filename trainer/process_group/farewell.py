"""Why a rank leaves its group: what it tells the peers, and which error they make of it."""

from enum import IntEnum, unique
from typing import final

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupClosed,
    PeerLost,
)


@final
@unique
class Kind(IntEnum):
    """What a rank says to another: data, or the reason why it leaves the group."""

    DATA = 1
    CLOSED = 2
    ABORTED = 3
    TIMED_OUT = 4
    PEER_LOST = 5
    MISMATCH = 6


def reason_of(error: Exception | None, rank: int) -> tuple[Kind, int]:
    """Return what rank `rank` tells its peers about its end, and which rank it is about."""
    match error:
        case PeerLost(rank=about):
            return Kind.PEER_LOST, about
        case CollectiveTimeout(ranks=ranks):
            return Kind.TIMED_OUT, ranks[0] if ranks else rank
        case CollectiveMismatch():
            return Kind.MISMATCH, rank
        case GroupClosed():
            return Kind.CLOSED, rank
        case _:
            return Kind.ABORTED, rank


def error_of(kind: Kind, about: int, rank: int, address: str) -> Exception:
    """Return the error for rank `rank` at `address`, which left for a reason."""
    if kind is Kind.MISMATCH:
        return CollectiveMismatch(
            f"rank {rank} ({address}) saw ranks call different collectives; its error says which"
        )
    if kind is Kind.TIMED_OUT:
        return CollectiveTimeout(
            f"rank {rank} ({address}) gave up waiting for rank {about};"
            f" see whether rank {about} still runs, then rejoin",
            ranks=[about],
        )
    if kind is Kind.PEER_LOST and about != rank:
        return PeerLost(
            f"rank {rank} ({address}) lost rank {about}; rejoin to go on in the next generation",
            rank=about,
            address=f"rank {about}",
        )
    return peer_lost(rank, address, f"it left the group ({kind.name.lower()})")


def peer_lost(rank: int, address: str, why: str) -> PeerLost:
    """Return the error for a rank that is gone."""
    return PeerLost(
        f"lost rank {rank} at {address}: {why}; rejoin to go on in the next generation",
        rank=rank,
        address=address,
    )
