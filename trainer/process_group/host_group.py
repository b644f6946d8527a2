"""The base of process groups of host memory: argument checks, the work queue, shutdown."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gradmesh.trainer.errors import GroupAborted, GroupClosed
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.collective import Collectives, Continuation
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup, ReduceOp
from gradmesh.trainer.process_group.validation import (
    check_all_to_all,
    check_gather,
    check_peer,
    check_ranks,
    check_reduce_scatter,
    check_root,
    check_scatter,
    check_source,
    check_target,
    describe_reduce,
)
from gradmesh.trainer.process_group.work import Work
from gradmesh.trainer.process_group.work_queue import WorkQueue

_CLOSE_S = 5.0


class HostProcessGroup(ProcessGroup):
    """A group whose works run one after another, on the queue's thread or the waiting one.

    Args:
        rank: This process's rank.
        size: Number of ranks.
        timeout_s: Longest time one collective may take.
        abort_signal: Holds the error that ends the group.
        collectives: Runs each collective.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout_s: float,
        abort_signal: AbortSignal,
        collectives: Collectives,
    ) -> None:
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._abort_signal = abort_signal
        self._is_closed = False
        self._children: list[ProcessGroup] = []
        self._sub_groups = 0
        self._collectives = collectives
        self._works = WorkQueue(f"process-group-{rank}", timeout_s, self._abort_signal, self._leave)

    @abstractmethod
    def _leave(self) -> None:
        """Send the peers a shutdown message and disconnect, on the queue's thread."""

    def _interrupt(self) -> None:
        """Wake a waiting collective after the abort signal is set."""

    @abstractmethod
    def _connect_sub_group(self, name: str, rank: int, parents: Sequence[int]) -> ProcessGroup:
        """Connect to the other members of a sub-group.

        Args:
            name: Unique in this group, and the same on all ranks.
            rank: This process's rank among the members.
            parents: The members' ranks in this group, in order.
        """

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self._rank}/{self._size})"

    def all_reduce(self, array: AnyArray, op: ReduceOp = "sum") -> Work:
        """Combine `array` over all ranks, in rank order, in place."""
        check_target(array, "all_reduce")
        text = describe_reduce("all_reduce", op, array.size, array.dtype)
        collectives = self._collectives
        return self._submit(
            collectives.all_reduce, text, array, op, begin=collectives.begin_all_reduce
        )

    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Replace `array` on every rank by the one of rank `root`."""
        check_target(array, "broadcast")
        check_root(root, self.size)
        text = f"broadcast({root}) of {array.size} {array.dtype.name}"
        return self._submit(self._collectives.broadcast, text, array, root)

    def all_gather(self, outputs: Sequence[AnyArray], array: AnyArray) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on every rank."""
        outputs = list(outputs)
        check_gather(outputs, array, self.rank, self.size)
        text = f"all_gather of {array.dtype.name}"
        return self._submit(self._collectives.all_gather, text, outputs, array)

    def reduce_scatter(
        self, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp = "sum"
    ) -> Work:
        """Combine `inputs[r]` over all ranks, in rank order, into `output` of rank r."""
        inputs = list(inputs)
        check_reduce_scatter(output, inputs, op, self.rank, self.size)
        text = f"reduce_scatter({op}) of {output.dtype.name}"
        return self._submit(self._collectives.reduce_scatter, text, output, inputs, op)

    def all_to_all(self, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray]) -> Work:
        """Copy `inputs[r]` of this rank into `outputs[rank]` of rank r, for all pairs."""
        outputs, inputs = list(outputs), list(inputs)
        check_all_to_all(outputs, inputs, self.rank, self.size)
        text = f"all_to_all of {inputs[0].dtype.name}"
        return self._submit(self._collectives.all_to_all, text, outputs, inputs)

    def gather(self, outputs: Sequence[AnyArray] | None, array: AnyArray, root: int) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on rank `root`."""
        check_root(root, self.size)
        check_source(array, "gather")
        if self.rank == root:
            outputs = list(outputs if outputs is not None else ())
            check_gather(outputs, array, self.rank, self.size, "gather")
        text = f"gather({root}) of {array.dtype.name}"
        return self._submit(self._collectives.gather, text, outputs, array, root)

    def scatter(self, array: AnyArray, inputs: Sequence[AnyArray] | None, root: int) -> Work:
        """Copy `inputs[r]` of rank `root` into `array` of rank r."""
        inputs = list(inputs) if inputs is not None else None
        check_scatter(array, inputs, self.rank, root, self.size)
        text = f"scatter({root}) of {array.dtype.name}"
        return self._submit(self._collectives.scatter, text, array, inputs, root)

    def send(self, array: AnyArray, to: int) -> Work:
        """Send `array` to the rank `to`."""
        check_source(array, "send")
        check_peer(to, self.rank, self.size)
        text = f"send({self.rank} to {to}) of {array.size} {array.dtype.name}"
        return self._submit(self._collectives.send, text, array, to)

    def recv(self, array: AnyArray, source: int) -> Work:
        """Replace `array` by what the rank `source` sends."""
        check_target(array, "recv")
        check_peer(source, self.rank, self.size)
        text = f"send({source} to {self.rank}) of {array.size} {array.dtype.name}"
        return self._submit(self._collectives.recv, text, array, source)

    def barrier(self) -> Work:
        """Finish once every rank has called it."""
        collectives = self._collectives
        return self._submit(collectives.barrier, "barrier", begin=collectives.begin_barrier)

    def sub_group(self, ranks: Sequence[int]) -> ProcessGroup | None:
        """Return a group of some of the ranks, None if this rank is not one of them."""
        self._check_open()
        members = check_ranks(ranks, self.size)
        self._sub_groups += 1
        if self.rank not in members:
            return None
        name = f"{self._sub_groups}-{'-'.join(map(str, members))}"
        child = self._connect_sub_group(name, members.index(self.rank), members)
        self._children.append(child)
        return child

    def abort(self) -> None:
        """End all pending works with GroupAborted, and notify the peers. Does not block."""
        for child in self._children:
            child.abort()
        self._works.abort(GroupAborted(f"{self} was aborted; rejoin and build a new one"))
        self._interrupt()

    def close(self) -> None:
        """Leave the group: pending works end with GroupClosed, and the peers are notified."""
        for child in self._children:
            child.close()
        self._is_closed = True
        self._works.abort(GroupClosed(f"{self} was closed; build a new one"))
        self._interrupt()
        self._works.join(_CLOSE_S)
        self._abort_signal.close()

    def _submit(
        self,
        job: Callable[..., None],
        text: str,
        *arguments: Any,
        begin: Callable[..., Continuation | None] | None = None,
    ) -> Work:
        self._check_open()
        start = None if begin is None else partial(self._begin, begin, text, *arguments)
        return self._works.submit(text, partial(job, text, *arguments), start)

    def _begin(
        self, begin: Callable[..., Continuation | None], text: str, *arguments: Any
    ) -> Continuation | None:
        rest = begin(text, *arguments)
        if rest is not None and self._collectives.needs_thread():
            self._works.ensure_progress()
        return rest

    def _check_open(self) -> None:
        if self._is_closed:
            raise GroupClosed(f"{self} was closed; build a new one")
