"""The abstract process group: collectives between the ranks of one generation.

Reductions combine the ranks' arrays in rank order, `((x0 + x1) + x2) + ...`, in the
arrays' own dtype, on every backend: results are bit-identical on all ranks and runs. Only
averages of two-byte floats are accumulated in float32, so that no sum overflows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.process_group.work import Work

AnyArray: TypeAlias = npt.NDArray[Any]
ReduceOp: TypeAlias = Literal["sum", "avg", "max", "min", "prod"]


class ProcessGroup(ABC):
    """Collectives between `size` ranks, of which this process is `rank`.

    Every rank MUST call the same collectives in the same order with the same shapes and
    dtypes. Calls return at once with a `Work`; works finish in the order of the calls.
    Arrays may be non-contiguous. They MUST be writable if they receive a result, and MUST NOT be
    touched until the work is done. Bad arguments raise at the call and change nothing.

    If a call takes one array for each rank, an array [size, ...] works, too.
    """

    @property
    @abstractmethod
    def backend(self) -> str:
        """The backend's name, as the setting spells it: local, shm, tcp, mpi or nccl."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's rank, 0 <= rank < size."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks."""

    @property
    @abstractmethod
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far."""

    @abstractmethod
    def all_reduce(self, array: AnyArray, op: ReduceOp = "sum") -> Work:
        """Combine `array` over all ranks, in rank order, in place.

        Args:
            array: Numbers of any shape; the result replaces them.
            op: How to combine. "avg" is the sum divided by `size`, for floats only; of two-byte
                floats it is summed and divided in float32 and rounded once.
        """

    @abstractmethod
    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Replace `array` on every rank by the one of rank `root`."""

    @abstractmethod
    def all_gather(self, outputs: Sequence[AnyArray], array: AnyArray) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on every rank.

        Args:
            outputs: One array for each rank, shaped like that rank's `array`; shapes may
                differ between ranks, the dtype may not.
            array: What this rank contributes.
        """

    @abstractmethod
    def reduce_scatter(
        self, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp = "sum"
    ) -> Work:
        """Combine `inputs[r]` over all ranks, in rank order, into `output` of rank r.

        Args:
            output: Receives this rank's share, shaped like `inputs[rank]`.
            inputs: One array for each rank; their shapes may differ from each other, but each has
                the same shape on all ranks. They are not changed.
            op: How to combine, as in all_reduce.
        """

    @abstractmethod
    def all_to_all(self, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray]) -> Work:
        """Copy `inputs[r]` of this rank into `outputs[rank]` of rank r, for all pairs.

        Args:
            outputs: One array for each rank; `outputs[r]` is shaped like what rank r sends here.
            inputs: One array for each rank; shapes may differ, the dtype may not.
        """

    @abstractmethod
    def gather(self, outputs: Sequence[AnyArray] | None, array: AnyArray, root: int) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on rank `root`.

        Args:
            outputs: On `root` as in all_gather; None on the others.
            array: What this rank contributes.
            root: The rank that receives.
        """

    @abstractmethod
    def scatter(self, array: AnyArray, inputs: Sequence[AnyArray] | None, root: int) -> Work:
        """Copy `inputs[r]` of rank `root` into `array` of rank r.

        Args:
            array: Receives this rank's share.
            inputs: On `root` one array for each rank; None on the others.
            root: The rank that sends.
        """

    @abstractmethod
    def send(self, array: AnyArray, to: int) -> Work:
        """Send `array` to the rank `to`, which MUST call recv for it.

        Messages between two ranks arrive in the order of the calls. Ranks may send to one
        another before they receive, but not with nccl, whose sends wait for the receiver.
        """

    @abstractmethod
    def recv(self, array: AnyArray, source: int) -> Work:
        """Replace `array` by what the rank `source` sends."""

    @abstractmethod
    def barrier(self) -> Work:
        """Finish once every rank has called it."""

    @abstractmethod
    def sub_group(self, ranks: Sequence[int]) -> "ProcessGroup | None":
        """Return a group of some of the ranks, None if this rank is not one of them.

        Every rank of this group MUST call it, in the same order with the same ranks, also
        ranks that are not members. Blocks until the members are connected. The members keep
        their order: the lowest becomes rank 0. Closing or aborting this group does the same
        to the sub-group.

        Raises:
            CollectiveTimeout: A member did not connect in time.
        """

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
        """Return uninitialised memory that this group reduces in place fastest.

        Any other array works as well, perhaps with one more copy. The memory belongs to the
        caller and outlives the group.
        """
        return np.empty(shape, dtype)

    @abstractmethod
    def abort(self) -> None:
        """End all pending works with GroupAborted, from any thread, and notify the peers."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and free its resources; may be called again.

        Pending works end with GroupClosed on this rank; peers that still expect data of this
        rank get PeerLost.
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
