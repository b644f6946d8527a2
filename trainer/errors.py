"""Errors of a training process. They never cross the wire.

All but DataError and CodeNotTrusted are RuntimeErrors, as torch's are in the same cases. The first
column names their other base class.

    TimeoutError     CollectiveTimeout     a collective did not end in time
                     TrainersMissing       the other trainers did not join
    ConnectionError  PeerLost              the connection to a rank ended
                     HandshakeRefused      a rank refused the connection
    ValueError       CollectiveMismatch    ranks called different collectives
                     DataError             a data set cannot be used as it is
                     TrainingDiverged      the loss is NaN or infinite
    PermissionError  CodeNotTrusted        a model's folder names code, and was not trusted
    ImportError      BackendMissing        what a backend needs is not installed
    RuntimeError     GroupAborted          abort() was called on this group
                     GroupClosed           close() was called on this group
                     NoDefaultGroup        no group was given, and there is no default
                     ReductionError        gradients could not be averaged:
                       MissingGradient       a parameter got no gradient
                       RepeatedGradient      a gradient was complete twice in one pass
                       GraphChanged          a graph declared static changed
                       UnfinishedReduction   the last backward pass did not end
                     InputsExhausted       a rank has no inputs left, and all ranks must stop

A process group cannot be used after CollectiveTimeout and those below it down to GroupClosed,
except DataError, TrainingDiverged and BackendMissing: build a new one in the next generation.
`exit_code` is the exit code of a process that ends because of the error.
"""

from collections.abc import Sequence
from typing import ClassVar

from gradmesh.base_error import GradmeshError

_LOST_MESH = 3


class CollectiveTimeout(TimeoutError, RuntimeError, GradmeshError):
    """A collective did not end within its timeout; `ranks` are those still awaited."""

    exit_code: ClassVar[int] = _LOST_MESH

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class PeerLost(ConnectionError, RuntimeError, GradmeshError):
    """The connection to a rank ended; `rank` is -1 where NCCL does not say which."""

    exit_code: ClassVar[int] = _LOST_MESH

    def __init__(self, message: str, *, rank: int, address: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.address = address


class HandshakeRefused(ConnectionError, RuntimeError, GradmeshError):
    """A rank refused the connection: other generation, rank, world size or secret."""

    exit_code: ClassVar[int] = _LOST_MESH


class CollectiveMismatch(ValueError, RuntimeError, GradmeshError):
    """Ranks called different collectives, or the same with other shapes or dtypes."""


class DataError(ValueError, GradmeshError):
    """Data cannot be used; the message names the file, the line if there is one, and the remedy."""

    exit_code: ClassVar[int] = 2


class CodeNotTrusted(PermissionError, GradmeshError):
    """A model's folder names code to import; read that code, then trust the folder explicitly."""

    exit_code: ClassVar[int] = 2


class TrainingDiverged(ValueError, RuntimeError, GradmeshError):
    """The loss is NaN or infinite; the message names step, rank and the settings to lower."""

    exit_code: ClassVar[int] = 2


class BackendMissing(ImportError, RuntimeError, GradmeshError):
    """A process group's backend needs a package or library that is not installed."""


class GroupAborted(RuntimeError, GradmeshError):
    """The process group was aborted; pending and later calls end with this."""


class GroupClosed(RuntimeError, GradmeshError):
    """The process group was closed; pending and later calls end with this."""


class NoDefaultGroup(RuntimeError, GradmeshError):
    """No process group was given, and init_process_group has not set a default."""


class ReductionError(RuntimeError, GradmeshError):
    """Gradients could not be averaged over the ranks."""


class MissingGradient(ReductionError):
    """A parameter that is kept equal on all ranks got no gradient; raised on all ranks."""


class RepeatedGradient(ReductionError):
    """A parameter's gradient was complete twice in one backward pass."""


class GraphChanged(ReductionError):
    """A graph that was declared static used other parameters than in its first pass."""


class UnfinishedReduction(ReductionError):
    """The last backward pass did not end; peers may be a pass ahead or behind."""


class InputsExhausted(RuntimeError, GradmeshError):
    """A rank has no inputs left, and all ranks must stop together."""


class TrainersMissing(TimeoutError, RuntimeError, GradmeshError):
    """The other trainers of the cluster did not join in time."""

    exit_code: ClassVar[int] = _LOST_MESH
