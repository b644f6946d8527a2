"""All-reduce of gradients: averages of dense memory and of sparse rows, by any divisor.

Sparse gradients are gathered, which works on every backend, NCCL included. Each rank first sums the
rows of equal ids, then ranks are added in rank order: the result is bit-identical on all ranks.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import Array, array_module, to_numpy
from gradmesh.trainer.ddp.agreement import to_group_memory
from gradmesh.trainer.ddp.comm_hook import CommFuture
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.errors import CollectiveMismatch
from gradmesh.trainer.process_group import ProcessGroup
from gradmesh.trainer.process_group.reduction import accumulation_dtype


def average(
    group: ProcessGroup, memory: Array, divisor: int, reduce_dtype: Any = None
) -> CommFuture:
    """Return a future of memory replaced by its sum over the ranks, divided.

    Two-byte floats are summed and divided in float32 and rounded once, like the group's own
    averages: the sum may exceed the dtype's range even if the average does not.

    Args:
        group: The ranks.
        memory: The values; overwritten.
        divisor: What the sum is divided by.
        reduce_dtype: The dtype that values are rounded to for the all-reduce; None for their own.
    """
    if reduce_dtype is not None and reduce_dtype != memory.dtype:
        short = _copy(group, memory, reduce_dtype)
        return average(group, short, divisor).then(lambda mean: _put_back(memory, mean))
    if divisor == group.size:
        return CommFuture.after(group.all_reduce(memory, "avg"), memory)
    if accumulation_dtype(memory.dtype) != memory.dtype:
        wide = _copy(group, memory, accumulation_dtype(memory.dtype))
        return average(group, wide, divisor).then(lambda mean: _put_back(memory, mean))
    return CommFuture.after(group.all_reduce(memory), memory).then(
        lambda sums: _divide(sums, divisor)
    )


def _copy(group: ProcessGroup, memory: Array, dtype: Any) -> Array:
    made = group.empty(memory.shape, dtype)
    copy_into(made, memory)
    return made


def _put_back(memory: Array, mean: Array) -> Array:
    copy_into(memory, mean)
    return memory


def _divide(sums: Array, divisor: int) -> Array:
    divided: Array = array_module(sums).divide(sums, sums.dtype.type(divisor), out=sums)
    return divided


@final
class SparseAllReduce:
    """Sum rows over the ranks: gather counts at once, ids and rows in `wait`.

    Args:
        group: The ranks.
        grad: This rank's rows; an empty RowGrad if it has none.
        status: Whether this rank has an error to report; gathered with the counts.
    """

    def __init__(self, group: ProcessGroup, grad: RowGrad, status: bool = False) -> None:
        self._group = group
        self._grad = grad.coalesce()
        self._counts = group.empty((group.size, 2), np.int64)
        own = to_group_memory(group, np.array([len(self._grad.ids), int(status)], np.int64))
        self._work = group.all_gather(list(self._counts), own)
        self.status = False

    def wait(self, divisor: int = 1) -> RowGrad:
        """Return the sum over all ranks, divided; collective, in the order of the launches.

        Two-byte floats are summed and divided in float32 and rounded once.

        Raises:
            CollectiveMismatch: A rank has other rows than the parameter.
        """
        self._work.wait()
        # A copy: in shared memory another rank can change what was checked.
        counts = np.array(to_numpy(self._counts))
        self.status = bool(counts[:, 1].any())
        sizes = [int(count) for count in counts[:, 0]]
        grad = self._grad
        for rank, count in enumerate(sizes):
            # Each id once.
            if not 0 <= count <= grad.num_rows:
                raise CollectiveMismatch(f"rank {rank} has {count} rows of {grad.num_rows}")
        ids = self._gather(grad.ids, sizes, ())
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < grad.num_rows:
            raise CollectiveMismatch(f"a rank has gradients of rows outside the {grad.num_rows}")
        rows = self._gather(grad.rows, sizes, tuple(grad.rows.shape[1:]))
        wide = rows.astype(accumulation_dtype(rows.dtype), copy=False)
        mean = _divided(RowGrad(ids, wide, grad.num_rows).coalesce(), divisor)
        if wide.dtype == rows.dtype:
            return mean
        return RowGrad(mean.ids, mean.rows.astype(rows.dtype), grad.num_rows, coalesced=True)

    def _gather(self, own: Array, sizes: list[int], tail: tuple[int, ...]) -> Array:
        """Return all ranks' arrays concatenated, on the device of `own`."""
        group, xp = self._group, array_module(own)
        whole = group.empty((sum(sizes), *tail), own.dtype)
        ends = np.cumsum([0, *sizes])
        parts = [whole[a:b] for a, b in itertools.pairwise(ends)]
        contribution = group.empty(own.shape, own.dtype)
        copy_into(contribution, own)
        group.all_gather(parts, contribution).wait()
        made = xp.empty(whole.shape, dtype=own.dtype)
        copy_into(made, whole)
        return made


def all_reduce_rows(group: ProcessGroup, grad: RowGrad, divisor: int = 1) -> CommFuture:
    """Return a future of the sum of a sparse gradient over all ranks, divided by a number."""
    all_reduce = SparseAllReduce(group, grad)
    return CommFuture(partial(all_reduce.wait, divisor))


def _divided(grad: RowGrad, divisor: int) -> RowGrad:
    """Return a sparse gradient divided by a number, in its own dtype."""
    if divisor == 1:
        return grad
    rows = grad.rows / grad.rows.dtype.type(divisor)
    return RowGrad(grad.ids, rows, grad.num_rows, coalesced=grad.coalesced)


def as_rows(grad: Any, shape: tuple[int, ...], like: Array) -> RowGrad:
    """Return a gradient as rows: none for None, all of them for a whole array."""
    if isinstance(grad, RowGrad):
        return grad
    xp = array_module(like)
    if grad is None:
        ids, rows = xp.empty(0, dtype="int64"), xp.empty((0, *shape[1:]), dtype=like.dtype)
    else:
        ids, rows = xp.arange(shape[0], dtype="int64"), grad
    return RowGrad(ids, rows, shape[0], coalesced=True)
