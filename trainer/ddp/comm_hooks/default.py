"""All-reduce as a hook, compression to two bytes, and nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import view_of
from gradmesh.engine.backend.dtype import bfloat16, float16
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.grad_bucket import GradBucket
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.ddp.row_exchange import all_reduce_rows
from gradmesh.trainer.process_group import ProcessGroup

CommHook: TypeAlias = Callable[[Any, GradBucket], Future]


def group_of(state: Any, bucket: GradBucket) -> ProcessGroup:
    """Return the group a hook was given as its state, else the wrapper's."""
    return state if isinstance(state, ProcessGroup) else bucket.group


def allreduce_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Average over the ranks, as without a hook.

    Args:
        process_group: The ranks, or None for those of the wrapper.
        bucket: The gradients.
    """
    return average(group_of(process_group, bucket), bucket)


def average(group: ProcessGroup, bucket: GradBucket) -> Future:
    """Return the future of a bucket's average over a group: the sum in rank order, divided."""
    buffer = bucket.buffer()
    if isinstance(buffer, RowGrad):
        return all_reduce_rows(group, buffer, group.size)
    return Future.after(group.all_reduce(buffer, "avg"), buffer)


def fp16_compress_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Average in float16: half the bytes, eleven bits of precision, up to 65504."""
    return _compressed(group_of(process_group, bucket), bucket, float16)


def bf16_compress_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Average in bfloat16: half the bytes, eight bits of precision, the range of float32."""
    return _compressed(group_of(process_group, bucket), bucket, bfloat16)


def _compressed(group: ProcessGroup, bucket: GradBucket, dtype: Any) -> Future:
    buffer = bucket.buffer()
    if isinstance(buffer, RowGrad):
        rows = (buffer.rows / buffer.dtype.type(group.size)).astype(dtype)
        short = RowGrad(buffer.ids, rows, buffer.num_rows, buffer.coalesced)
        return all_reduce_rows(group, short).then(
            lambda total: RowGrad(
                total.ids, total.rows.astype(buffer.dtype), total.num_rows, coalesced=True
            )
        )
    memory = group.empty(buffer.shape, dtype)
    # Divided before it is cast, here and above: the range of float16 is short.
    copy_into(memory, (buffer / buffer.dtype.type(group.size)).astype(dtype))
    return Future.after(group.all_reduce(memory), memory).then(lambda sums: _widen(buffer, sums))


def _widen(buffer: Any, sums: Any) -> Any:
    copy_into(buffer, sums)
    return buffer


def fp16_compress_wrapper(hook: CommHook) -> CommHook:
    """Return a hook that gives another one the bucket in float16, and widens its result."""
    return _wrapped(hook, float16, "fp16")


def bf16_compress_wrapper(hook: CommHook) -> CommHook:
    """Return a hook that gives another one the bucket in bfloat16, and widens its result."""
    return _wrapped(hook, bfloat16, "bf16")


def _wrapped(hook: CommHook, dtype: Any, name: str) -> CommHook:
    def run(state: Any, bucket: GradBucket) -> Future:
        buffer = bucket.buffer()
        if isinstance(buffer, RowGrad):
            return hook(state, bucket)
        short = bucket.group.empty(buffer.shape, dtype)
        copy_into(short, buffer.astype(dtype))
        views, start = [], 0
        for leaf in bucket.parameters():
            views.append(view_of(short[start : start + leaf.numel()], leaf.shape))
            start += leaf.numel()
        inner = GradBucket(
            bucket.index(), short, views, bucket.parameters(), bucket.group, bucket.is_last()
        )
        return hook(state, inner).then(lambda result: _widen(buffer, result))

    run.__qualname__ = f"{name}_compress_wrapper({getattr(hook, '__qualname__', hook)})"
    return run


def noop_hook(state: Any, bucket: GradBucket) -> Future:
    """Send nothing: gradients stay those of each rank. For measuring what sending costs."""
    return Future.done(bucket.buffer())
