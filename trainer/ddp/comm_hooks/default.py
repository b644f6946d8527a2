"""Basic hooks: all-reduce, compression to two bytes, no-op, and a step after the reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import view_of
from gradmesh.engine.backend.dtype import bfloat16, float16
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.all_reduce import all_reduce_rows
from gradmesh.trainer.ddp.comm_hook import CommFuture, GradBucket
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup

CommHook: TypeAlias = Callable[[Any, GradBucket], CommFuture]


def group_of(state: Any, bucket: GradBucket) -> ProcessGroup:
    """Return the group passed as the hook's state, or the wrapper's."""
    return state if isinstance(state, ProcessGroup) else bucket.group


def allreduce_hook(process_group: Any, bucket: GradBucket) -> CommFuture:
    """Average over the ranks, as without a hook.

    Args:
        process_group: The ranks, or None for those of the wrapper.
        bucket: The gradients.
    """
    return average(group_of(process_group, bucket), bucket)


def average(group: ProcessGroup, bucket: GradBucket) -> CommFuture:
    """Return a future of a bucket's average over a group: the sum in rank order, divided."""
    buffer = bucket.buffer()
    if isinstance(buffer, RowGrad):
        return all_reduce_rows(group, buffer, group.size)
    return CommFuture.after(group.all_reduce(buffer, "avg"), buffer)


def fp16_compress_hook(process_group: Any, bucket: GradBucket) -> CommFuture:
    """Average in float16: half the bytes, eleven bits of precision, up to 65504."""
    return _compressed(group_of(process_group, bucket), bucket, float16)


def bf16_compress_hook(process_group: Any, bucket: GradBucket) -> CommFuture:
    """Average in bfloat16: half the bytes, eight bits of precision, the range of float32."""
    return _compressed(group_of(process_group, bucket), bucket, bfloat16)


def _compressed(group: ProcessGroup, bucket: GradBucket, dtype: Any) -> CommFuture:
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
    # Divided before the cast, here and above: float16 has a short range.
    copy_into(memory, (buffer / buffer.dtype.type(group.size)).astype(dtype))
    return CommFuture.after(group.all_reduce(memory), memory).then(
        lambda sums: _widen(buffer, sums)
    )


def _widen(buffer: Any, sums: Any) -> Any:
    copy_into(buffer, sums)
    return buffer


def fp16_compress_wrapper(hook: CommHook) -> CommHook:
    """Return a hook that runs another hook on a float16 copy of the bucket."""
    return _wrapped(hook, float16, "fp16")


def bf16_compress_wrapper(hook: CommHook) -> CommHook:
    """Return a hook that runs another hook on a bfloat16 copy of the bucket."""
    return _wrapped(hook, bfloat16, "bf16")


def _wrapped(hook: CommHook, dtype: Any, name: str) -> CommHook:
    def run(state: Any, bucket: GradBucket) -> CommFuture:
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


def noop_hook(state: Any, bucket: GradBucket) -> CommFuture:
    """Leave gradients unreduced, to measure the cost of communication."""
    return CommFuture.done(bucket.buffer())


def hook_then_optimizer(
    hook: CommHook, optimizer: Optimizer, parameters: Iterable[Tensor] | None = None
) -> CommHook:
    """Return a hook that runs another hook, then the optimizer on the bucket's parameters.

    Steps of early buckets overlap with the reduction of later ones. A parameter without a gradient
    on any rank is stepped with zero. Not for gradient accumulation.

    Args:
        hook: Averages the gradients.
        optimizer: Holds the parameters; do not call its `step` as well.
        parameters: The parameters to step; all of the bucket if None.
    """
    chosen = None if parameters is None else {id(parameter) for parameter in parameters}

    def run(state: Any, bucket: GradBucket) -> CommFuture:
        leaves = bucket.parameters()

        def step(result: Any) -> Any:
            grads = [result]
            if not isinstance(result, RowGrad):
                bucket.set_buffer(result)
                grads = bucket.gradients()
            pairs = zip(leaves, grads, strict=True)
            optimizer.step({p: g for p, g in pairs if chosen is None or id(p) in chosen})
            return bucket.buffer() if not isinstance(result, RowGrad) else result

        return hook(state, bucket).then(step)

    run.__qualname__ = f"hook_then_optimizer({getattr(hook, '__qualname__', hook)})"
    return run
