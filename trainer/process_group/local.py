"""The process group of one rank: what a single process trains with."""

from collections.abc import Sequence
from typing import final

from gradmesh.trainer.errors import GroupAborted, GroupClosed
from gradmesh.trainer.process_group.argument import (
    check_gather,
    check_reduce,
    check_root,
    check_target,
)
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup, ReduceOp
from gradmesh.trainer.process_group.work import FinishedWork, Work


@final
class LocalProcessGroup(ProcessGroup):
    """One rank, no peers: every collective is done when its call returns."""

    def __init__(self) -> None:
        self._spent: RuntimeError | None = None

    @property
    def rank(self) -> int:
        """Return 0."""
        return 0

    @property
    def size(self) -> int:
        """Return 1."""
        return 1

    @property
    def bytes_moved(self) -> int:
        """Return 0: nothing leaves the process."""
        return 0

    def all_reduce(self, array: AnyArray, op: ReduceOp = "sum") -> Work:
        """Leave `array` as it is: the reduction of one rank."""
        self._check_usable()
        check_reduce(array, op)
        return FinishedWork()

    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Leave `array` as it is."""
        self._check_usable()
        check_target(array, "broadcast")
        check_root(root, self.size)
        return FinishedWork()

    def all_gather(self, outputs: Sequence[AnyArray], array: AnyArray) -> Work:
        """Copy `array` into `outputs[0]`."""
        self._check_usable()
        check_gather(outputs, array, self.rank, self.size)
        outputs[0][...] = array
        return FinishedWork()

    def barrier(self) -> Work:
        """Return at once: everybody is here."""
        self._check_usable()
        return FinishedWork()

    def abort(self) -> None:
        """Refuse every later call."""
        self._spent = self._spent or GroupAborted("the process group was aborted; build a new one")

    def close(self) -> None:
        """Refuse every later call."""
        self._spent = GroupClosed("the process group is closed; build a new one")

    def _check_usable(self) -> None:
        if self._spent is not None:
            raise self._spent
