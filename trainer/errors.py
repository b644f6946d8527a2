"""Errors of a training process. They never cross the wire.

    TimeoutError     CollectiveTimeout     a collective did not end in time
                     TrainersMissing       the other trainers did not come
    ConnectionError  PeerLost              a rank went away
                     HandshakeRefused      a rank would not let us in
    ValueError       CollectiveMismatch    ranks asked for different things
    ImportError      BackendMissing        what a backend needs is not installed
    RuntimeError     GroupAborted          abort() was called on this group
                     GroupClosed           close() was called on this group
                     MissingGradient       a parameter took no part in the loss

After CollectiveTimeout and all below it but MissingGradient a process group is spent: build a new
one in the next generation. `exit_code` is what a process ends with that gives up on the error.
"""

from collections.abc import Sequence
from typing import ClassVar

_LOST_MESH = 3


class CollectiveTimeout(TimeoutError):
    """A collective did not end within its timeout; `ranks` are those still awaited."""

    exit_code: ClassVar[int] = _LOST_MESH

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class PeerLost(ConnectionError):
    """The connection to a rank ended; `rank` and `address` say whose, -1 if NCCL does not tell."""

    exit_code: ClassVar[int] = _LOST_MESH

    def __init__(self, message: str, *, rank: int, address: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.address = address


class HandshakeRefused(ConnectionError):
    """A rank refused the connection: other generation, rank, world size or secret."""

    exit_code: ClassVar[int] = _LOST_MESH


class CollectiveMismatch(ValueError):
    """Ranks called different collectives, or the same with other shapes or dtypes."""


class BackendMissing(ImportError):
    """A process group's backend needs a package or library that is not installed."""


class GroupAborted(RuntimeError):
    """The process group was aborted; pending and later calls end with this."""


class GroupClosed(RuntimeError):
    """The process group was closed; pending and later calls end with this."""


class MissingGradient(RuntimeError):
    """A parameter that the reducer keeps equal on all ranks got no gradient."""


class TrainersMissing(TimeoutError):
    """The other trainers of the cluster did not join in time."""

    exit_code: ClassVar[int] = _LOST_MESH
