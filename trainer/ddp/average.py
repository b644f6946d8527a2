"""The average of a run of memory over the ranks, by any divisor."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.backend import Array, array_module
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup

_HALF_BYTES = 2


def wide_dtype(dtype: Any) -> Any:
    """Return the dtype that sums of a dtype are carried in: float32 for two-byte floats."""
    return np.dtype(np.float32) if dtype.itemsize == _HALF_BYTES else dtype


def average(group: ProcessGroup, memory: Array, divisor: int, travels_as: Any = None) -> Future:
    """Return the future of memory replaced by its sum over the ranks, divided.

    Two-byte floats are summed and divided in float32 and rounded once, as the group's own
    averages are: their sum may lie outside their range where the average does not.

    Args:
        group: The ranks.
        memory: The values; overwritten.
        divisor: What the sum is divided by.
        travels_as: The dtype to which values are rounded on their way; None for their own.
    """
    if travels_as is not None and travels_as != memory.dtype:
        short = _copy(group, memory, travels_as)
        return average(group, short, divisor).then(lambda mean: _put_back(memory, mean))
    if divisor == group.size:
        return Future.after(group.all_reduce(memory, "avg"), memory)
    if wide_dtype(memory.dtype) != memory.dtype:
        wide = _copy(group, memory, wide_dtype(memory.dtype))
        return average(group, wide, divisor).then(lambda mean: _put_back(memory, mean))
    return Future.after(group.all_reduce(memory), memory).then(lambda sums: _divide(sums, divisor))


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
