"""The process group of one rank, for training in a single process."""

from collections.abc import Sequence
from typing import final

from gradmesh.trainer.errors import GroupAborted, GroupClosed
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup, ReduceOp
from gradmesh.trainer.process_group.validation import (
    check_all_to_all,
    check_gather,
    check_peer,
    check_ranks,
    check_reduce,
    check_reduce_scatter,
    check_root,
    check_scatter,
    check_target,
)
from gradmesh.trainer.process_group.work import FinishedWork, Work


@final
class LocalProcessGroup(ProcessGroup):
    """A process group of one rank: every collective has finished when its call returns."""

    def __init__(self) -> None:
        self._error: RuntimeError | None = None
        self._children: list[ProcessGroup] = []

    @property
    def backend(self) -> str:
        """Return "local"."""
        return "local"

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
        """Do nothing: the reduction of one rank is its array."""
        self._check_usable()
        check_reduce(array, op)
        return FinishedWork()

    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Do nothing: the root is this rank."""
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

    def reduce_scatter(
        self, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp = "sum"
    ) -> Work:
        """Copy `inputs[0]` into `output`: the reduction of one rank."""
        self._check_usable()
        check_reduce_scatter(output, inputs, op, self.rank, self.size)
        output[...] = inputs[0]
        return FinishedWork()

    def all_to_all(self, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray]) -> Work:
        """Copy `inputs[0]` into `outputs[0]`."""
        self._check_usable()
        check_all_to_all(outputs, inputs, self.rank, self.size)
        outputs[0][...] = inputs[0]
        return FinishedWork()

    def gather(self, outputs: Sequence[AnyArray] | None, array: AnyArray, root: int) -> Work:
        """Copy `array` into `outputs[0]`."""
        self._check_usable()
        check_root(root, self.size)
        check_gather(outputs or (), array, self.rank, self.size, "gather")
        assert outputs is not None  # for the type checker: it was counted
        outputs[0][...] = array
        return FinishedWork()

    def scatter(self, array: AnyArray, inputs: Sequence[AnyArray] | None, root: int) -> Work:
        """Copy `inputs[0]` into `array`."""
        self._check_usable()
        check_scatter(array, inputs, self.rank, root, self.size)
        assert inputs is not None  # for the type checker: it was counted
        array[...] = inputs[0]
        return FinishedWork()

    def send(self, array: AnyArray, to: int) -> Work:
        """Raise: there is no rank to send to."""
        self._check_usable()
        check_peer(to, self.rank, self.size)
        raise AssertionError("one rank has no peers")

    def recv(self, array: AnyArray, source: int) -> Work:
        """Raise: there is no rank to receive from."""
        self._check_usable()
        check_peer(source, self.rank, self.size)
        raise AssertionError("one rank has no peers")

    def barrier(self) -> Work:
        """Return at once: there are no other ranks."""
        self._check_usable()
        return FinishedWork()

    def sub_group(self, ranks: Sequence[int]) -> ProcessGroup | None:
        """Return another group of this one rank."""
        self._check_usable()
        check_ranks(ranks, self.size)
        self._children.append(LocalProcessGroup())
        return self._children[-1]

    def abort(self) -> None:
        """Make every later call raise."""
        for child in self._children:
            child.abort()
        self._error = self._error or GroupAborted("the process group was aborted; build a new one")

    def close(self) -> None:
        """Make every later call raise."""
        for child in self._children:
            child.close()
        self._error = GroupClosed("the process group is closed; build a new one")

    def _check_usable(self) -> None:
        if self._error is not None:
            raise self._error
