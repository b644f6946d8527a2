"""The abstract process group: collectives between the ranks of one generation.

Reductions combine the ranks' arrays in rank order, `((x0 + x1) + x2) + ...`, in the
arrays' own dtype, on every backend: results are bit-identical on all ranks and runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import numpy.typing as npt

from gradmesh.trainer.process_group.work import Work

AnyArray: TypeAlias = npt.NDArray[Any]
ReduceOp: TypeAlias = Literal["sum", "avg", "max", "min", "prod"]


class ProcessGroup(ABC):
    """Collectives between `size` ranks, of which this process is `rank`.

    Every rank MUST call the same collectives in the same order with the same shapes and
    dtypes. Calls return at once with a `Work`; works end in the order of the calls. Arrays
    may be non-contiguous; they MUST be writable where a result goes, and stay untouched
    by the caller until the work is done. Bad arguments raise at the call and change nothing.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's place, 0 <= rank < size."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ranks take part."""

    @property
    @abstractmethod
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far."""

    @abstractmethod
    def all_reduce(self, array: AnyArray, op: ReduceOp = "sum") -> Work:
        """Combine `array` over all ranks, in rank order, in place.

        Args:
            array: Numbers of any shape; the result replaces them.
            op: How to combine. "avg" is the sum divided by `size`, for floats only.
        """

    @abstractmethod
    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Replace `array` on every rank by the one of rank `root`."""

    @abstractmethod
    def all_gather(self, outputs: Sequence[AnyArray], array: AnyArray) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on every rank.

        Args:
            outputs: One array for each rank, shaped like that rank's `array`; shapes may
                differ between ranks, the dtype may not. An array [size, ...] will do.
            array: What this rank contributes.
        """

    @abstractmethod
    def barrier(self) -> Work:
        """End once every rank has come here."""

    @abstractmethod
    def abort(self) -> None:
        """End all pending works with GroupAborted, from any thread, and tell the peers."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and free what it holds; may be repeated.

        Works still pending end with GroupClosed, here; peers that still expect something
        from this rank get PeerLost.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
