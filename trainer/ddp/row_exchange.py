"""Sums sparse gradients over ranks by gathering them: on every backend, NCCL included.

Each rank first sums the rows of equal ids, then ranks are added in rank order, so the result is
bit-identical on all ranks.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import Array, array_module, to_numpy
from gradmesh.trainer.ddp.average import wide_dtype
from gradmesh.trainer.ddp.exchange import on_group
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup


@final
class RowExchange:
    """One sum of rows under way: counts travel at once, ids and rows when it is waited for.

    Args:
        group: The ranks.
        grad: This rank's rows; a rank without any gives an empty RowGrad.
        status: Travels with the counts: whether this rank has something to report.
    """

    def __init__(self, group: ProcessGroup, grad: RowGrad, status: bool = False) -> None:
        self._group = group
        self._grad = grad.coalesce()
        self._counts = group.empty((group.size, 2), np.int64)
        own = on_group(group, np.array([len(self._grad.ids), int(status)], np.int64))
        self._work = group.all_gather(list(self._counts), own)
        self.status = False

    def wait(self, divisor: int = 1) -> RowGrad:
        """Return the sum over all ranks, divided; collective, in the order of the launches.

        Two-byte floats are summed and divided in float32 and rounded once.
        """
        self._work.wait()
        counts = to_numpy(self._counts)
        self.status = bool(counts[:, 1].any())
        sizes = [int(count) for count in counts[:, 0]]
        grad = self._grad
        ids = self._gather(grad.ids, sizes, ())
        rows = self._gather(grad.rows, sizes, tuple(grad.rows.shape[1:]))
        wide = rows.astype(wide_dtype(rows.dtype), copy=False)
        mean = _divided(RowGrad(ids, wide, grad.num_rows).coalesce(), divisor)
        if wide.dtype == rows.dtype:
            return mean
        return RowGrad(mean.ids, mean.rows.astype(rows.dtype), grad.num_rows, coalesced=True)

    def _gather(self, own: Array, sizes: list[int], tail: tuple[int, ...]) -> Array:
        """Return all ranks' arrays one after another, on the memory of `own`."""
        group, xp = self._group, array_module(own)
        whole = group.empty((sum(sizes), *tail), own.dtype)
        ends = np.cumsum([0, *sizes])
        parts = [whole[a:b] for a, b in itertools.pairwise(ends)]
        mine = group.empty(own.shape, own.dtype)
        copy_into(mine, own)
        group.all_gather(parts, mine).wait()
        made = xp.empty(whole.shape, dtype=own.dtype)
        copy_into(made, whole)
        return made


def all_reduce_rows(group: ProcessGroup, grad: RowGrad, divisor: int = 1) -> Future:
    """Return a future of the sum of a sparse gradient over all ranks, divided by a number."""
    exchange = RowExchange(group, grad)
    return Future(partial(exchange.wait, divisor))


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
