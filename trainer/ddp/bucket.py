"""Buckets: filled during a pass, launched when full, waited for at its end.

A bucket does not depend on passes or other buckets; the reducer decides when. Its last element is
the status: whether the rank has an error to report. It is summed with the gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import Array, array_module, to_numpy, view_of
from gradmesh.trainer.ddp.all_reduce import SparseAllReduce, as_rows, average
from gradmesh.trainer.ddp.bucket_assignment import GradientSpec
from gradmesh.trainer.ddp.bucket_memory import BucketMemory, BucketMemoryPool
from gradmesh.trainer.ddp.comm_hook import CommFuture, GradBucket
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.errors import CollectiveMismatch
from gradmesh.trainer.process_group import ProcessGroup


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """How to reduce a bucket."""

    group: ProcessGroup
    """The ranks."""
    divisor: int
    """What sums are divided by; a hook divides by itself."""
    hook: Callable[[GradBucket], CommFuture] | None
    """Repositions the all-reduce."""
    status: bool
    """Whether this rank has an error to report."""
    is_last: bool
    """Whether this is the last bucket of the pass."""


class Bucket(ABC):
    """Gradients that are reduced together.

    Args:
        index: Position in the order of launches.
        members: Indices of the parameters.
        leaves: The parameters.
        specs: Name, shape and dtype of their gradients.
    """

    def __init__(
        self,
        index: int,
        members: Sequence[int],
        leaves: Sequence[Tensor],
        specs: Sequence[GradientSpec],
    ) -> None:
        self.index = index
        self.members = tuple(members)
        self.leaves = list(leaves)
        self.specs = list(specs)
        self.waiting = len(self.members)
        self.is_skipped = False

    @property
    def nbytes(self) -> int:
        """Size of the gradients in bytes, counted as dense."""
        return sum(spec.nbytes for spec in self.specs)

    def reset(self) -> None:
        """Expect all gradients again."""
        self.waiting = len(self.members)
        self.is_skipped = False

    @abstractmethod
    def fill(self, slot: int, grad: Any) -> None:
        """Store a gradient, array or RowGrad; None means zero."""

    @abstractmethod
    def launch(self, launch: Launch) -> None:
        """Start the reduction; return at once."""

    @abstractmethod
    def wait(self) -> bool:
        """Wait until reduced and divided; return whether some rank has an error to report."""

    @abstractmethod
    def result(self, slot: int) -> Any:
        """Return a reduced gradient; an array is a view of the bucket."""


@final
class DenseBucket(Bucket):
    """Arrays of one dtype in one contiguous memory of the group."""

    def __init__(
        self,
        index: int,
        members: Sequence[int],
        leaves: Sequence[Tensor],
        specs: Sequence[GradientSpec],
        group: ProcessGroup,
    ) -> None:
        super().__init__(index, members, leaves, specs)
        self._launch: Launch | None = None
        self._future: CommFuture | None = None
        self._pool = BucketMemoryPool(self.leaves, self.specs, group)
        self._use(self._pool.current)

    def _use(self, memory: BucketMemory) -> None:
        self.memory, self.flat, self.views = memory.memory, memory.flat, memory.views

    def lend(self) -> None:
        """Let backward write gradients of this pass directly into the bucket.

        Switches to other memory if the user still holds gradients of an earlier pass in it.
        """
        self._use(self._pool.acquire())
        for leaf, view in zip(self.leaves, self.views, strict=True):
            fits = view.dtype == leaf.dtype and type(view) is type(leaf.data)
            if self._pool.can_lend and leaf.grad is None and fits:
                leaf.grad_buffer = view

    def use_separate_memory(self) -> None:
        """Use memory in this pass in which no `.grad` lies."""
        self._use(self._pool.acquire_separate())

    def end_lending(self, is_view: bool) -> None:
        """Allocate later gradients elsewhere, unless `is_view`; those in the bucket may stay."""
        self._use(self._pool.current)
        for leaf in self.leaves:
            if leaf.extras is not None and not is_view:
                leaf.extras.grad_buffer = None

    def fill(self, slot: int, grad: Any) -> None:
        """Copy a gradient to its slot, unless it lies there already."""
        view = self.views[slot]
        if grad is None:
            view[...] = 0
        elif isinstance(grad, RowGrad):
            copy_into(view, grad.to_dense())
        elif grad is not view:
            copy_into(view, grad)

    def launch(self, launch: Launch) -> None:
        """Start the all-reduce, or the hook."""
        self._launch = launch
        self.memory[-1] = launch.status
        if launch.hook is not None:
            self._future = launch.hook(
                GradBucket(
                    self.index, self.flat, self.views, self.leaves, launch.group, launch.is_last
                )
            )
            return
        reduce_dtype = self.specs[0].reduce_dtype
        self._future = average(launch.group, self.memory, launch.divisor, reduce_dtype)

    def wait(self) -> bool:
        """Wait for the reduction and copy its result into the bucket."""
        launch, future = self._launch, self._future
        assert launch is not None
        assert future is not None
        self._launch = self._future = None
        result = future.wait()
        if launch.hook is not None:
            self._copy_result(result)
            return False
        return bool(to_numpy(self.memory[-1:])[0] != 0)

    def result(self, slot: int) -> Array:
        """Return a view of the bucket."""
        return self.views[slot]

    def _copy_result(self, result: Any) -> None:
        if result is self.flat:
            return
        data = result.data if isinstance(result, Tensor) else result
        if not hasattr(data, "dtype") or data.size != self.flat.size:
            raise CollectiveMismatch(
                f"the communication hook gave {type(result).__name__} of"
                f" {getattr(data, 'size', 'no')} elements for bucket {self.index} of"
                f" {self.flat.size}; return the future of an array of the bucket's size"
            )
        copy_into(self.flat, data.reshape(-1))


@final
class SparseBucket(Bucket):
    """One sparse gradient: the ranks' rows are gathered and summed in rank order."""

    def __init__(
        self,
        index: int,
        members: Sequence[int],
        leaves: Sequence[Tensor],
        specs: Sequence[GradientSpec],
    ) -> None:
        super().__init__(index, members, leaves, specs)
        self.ids: np.ndarray[Any, Any] | None = None
        """Sorted ids announced for the next pass, the same on all ranks; None gathers them."""
        self._grad: RowGrad | None = None
        self._launch: Launch | None = None
        self._all_reduce: SparseAllReduce | None = None
        self._future: CommFuture | None = None
        self._status = False

    def fill(self, slot: int, grad: Any) -> None:
        """Keep the gradient as rows."""
        self._grad = as_rows(grad, self.specs[0].shape, self.leaves[0].data)

    def launch(self, launch: Launch) -> None:
        """Start to gather the row counts, or start the hook."""
        assert self._grad is not None
        self._launch = launch
        if launch.hook is not None:
            bucket = GradBucket(
                self.index, None, (), self.leaves, launch.group, launch.is_last, self._grad
            )
            self._future = launch.hook(bucket)
        elif self.ids is not None:
            self._future = self._reduce_known(launch, self._grad)
        else:
            self._all_reduce = SparseAllReduce(launch.group, self._grad, launch.status)
            self._future = CommFuture(partial(self._all_reduce.wait, launch.divisor))

    def wait(self) -> bool:
        """Gather the rows of all ranks, sum and divide them."""
        launch, future, all_reduce = self._launch, self._future, self._all_reduce
        assert launch is not None
        assert future is not None
        self._launch = self._future = self._all_reduce = None
        mean = future.wait()
        if launch.hook is not None:
            if not isinstance(mean, RowGrad):
                raise CollectiveMismatch(
                    f"the communication hook gave {type(mean).__name__} for the sparse bucket"
                    f" {self.index}; return the future of a RowGrad"
                )
            self._grad = mean
            return False
        self._grad = mean
        return all_reduce.status if all_reduce is not None else self._status

    def result(self, slot: int) -> RowGrad:
        """Return the reduced rows, in memory of their own."""
        assert self._grad is not None
        return self._grad

    def _reduce_known(self, launch: Launch, grad: RowGrad) -> CommFuture:
        """Average rows over known ids: one all-reduce of values, nothing is gathered."""
        ids, self.ids = self.ids, None
        assert ids is not None
        merged = grad.coalesce()
        positions = np.searchsorted(ids, to_numpy(merged.ids))
        known = positions < len(ids)
        known[known] = ids[positions[known]] == to_numpy(merged.ids)[known]
        if not known.all():
            missing = to_numpy(merged.ids)[~known][:5].tolist()
            raise CollectiveMismatch(
                f"{self.specs[0].name} has gradients for ids {missing} that set_sparse_ids did"
                " not announce; announce the ids of all ranks"
            )
        tail = tuple(grad.rows.shape[1:])
        memory = launch.group.empty(len(ids) * int(np.prod(tail, dtype=np.int64)) + 1, grad.dtype)
        memory[...] = 0
        values = view_of(memory[:-1], (len(ids), *tail))
        host = np.zeros(values.shape, grad.dtype)
        host[positions] = to_numpy(merged.rows)
        copy_into(values, host)
        memory[-1] = launch.status
        mean = average(launch.group, memory, launch.divisor)

        def wait() -> RowGrad:
            mean.wait()
            self._status = bool(to_numpy(memory[-1:])[0] != 0)
            xp = array_module(grad.rows)
            rows = xp.empty(values.shape, dtype=values.dtype)
            copy_into(rows, values)
            return RowGrad(xp.asarray(ids), rows, grad.num_rows, coalesced=True)

        return CommFuture(wait)


def make_bucket(
    index: int,
    members: Sequence[int],
    leaves: Sequence[Tensor],
    specs: Sequence[GradientSpec],
    group: ProcessGroup,
) -> Bucket:
    """Return a bucket for some of the parameters."""
    own, own_specs = [leaves[i] for i in members], [specs[i] for i in members]
    if own_specs[0].is_sparse:
        return SparseBucket(index, members, own, own_specs)
    return DenseBucket(index, members, own, own_specs, group)
