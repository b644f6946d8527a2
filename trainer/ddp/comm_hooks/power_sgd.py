"""PowerSGD: gradients as products of two thin matrices (Vogels and others, 2019).

A gradient M [n, m] travels as P [n, r] = M Q and Q [m, r] = Mᵀ P, with P made orthonormal between
the two. What the product misses is added to the next gradient (error feedback); Q is the starting
point of the next one (warm start). Ranks draw the first Q from equal seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.backend import Array, array_module, view_of
from gradmesh.trainer.ddp.average import wide_dtype
from gradmesh.trainer.ddp.comm_hooks.default import average
from gradmesh.trainer.ddp.comm_hooks.power_sgd_state import PowerSGDState, orthonormalise
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.grad_bucket import GradBucket
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup


def power_sgd_hook(state: PowerSGDState, bucket: GradBucket) -> Future:
    """Average matrices by thin products, vectors and what would not shrink as they are."""
    group = state.process_group or bucket.group
    if not state.begin(bucket):
        return average(group, bucket)
    wanted = state.add_error(bucket)
    views = bucket.gradients()
    thin = [place for place, view in enumerate(views) if _pays(view, state)]
    plain = [view for place, view in enumerate(views) if place not in set(thin)]
    rest = _packed(group, plain, bucket.buffer().dtype)
    rest_work = group.all_reduce(rest, "avg") if plain else None
    targets = [view_of(views[place], (views[place].shape[0], -1)) for place in thin]
    # Products and lengths of two-byte floats would leave their range.
    wide = wide_dtype(bucket.buffer().dtype)
    matrices = [target.astype(wide, copy=False) for target in targets]
    width = state.matrix_approximation_rank
    starts = [
        state.start((bucket.index(), place), m.shape[1], min(width, *m.shape), m)
        for place, m in zip(thin, matrices, strict=True)
    ]
    ps = [m @ q for m, q in zip(matrices, starts, strict=True)]
    p_memory = _packed(group, ps, wide)
    p_work = group.all_reduce(p_memory) if thin else None
    state.numel_before += bucket.buffer().size
    state.numel_after += rest.size + p_memory.size + sum(q.size for q in starts)

    def finish() -> Array:
        if rest_work is not None:
            rest_work.wait()
            _unpack(rest, plain)
        if p_work is not None:
            p_work.wait()
            _unpack(p_memory, ps)
            qs = _second_half(state, group, matrices, ps)
            for place, target, p, q in zip(thin, targets, ps, qs, strict=True):
                target[...] = p @ q.T
                state.keep((bucket.index(), place), q)
        state.keep_error(bucket, wanted, bucket.buffer())
        return bucket.buffer()

    return Future(finish)


def batched_power_sgd_hook(state: PowerSGDState, bucket: GradBucket) -> Future:
    """Average the whole bucket as one square matrix: quicker, less exact."""
    group = state.process_group or bucket.group
    if not state.begin(bucket):
        return average(group, bucket)
    wanted = state.add_error(bucket)
    buffer = bucket.buffer()
    side = int(np.ceil(np.sqrt(buffer.size)))
    wide = wide_dtype(buffer.dtype)
    padded = array_module(buffer).zeros(side * side, dtype=wide)
    padded[: buffer.size] = buffer
    matrix = padded.reshape(side, side)
    width = min(state.matrix_approximation_rank, side)
    p = matrix @ state.start((bucket.index(), -1), side, width, matrix)
    p_memory = _packed(group, [p], wide)
    p_work = group.all_reduce(p_memory)
    state.numel_before += buffer.size
    state.numel_after += 2 * side * width

    def finish() -> Array:
        p_work.wait()
        _unpack(p_memory, [p])
        (q,) = _second_half(state, group, [matrix], [p])
        state.keep((bucket.index(), -1), q)
        copy_into(buffer, (p @ q.T).reshape(-1)[: buffer.size])
        state.keep_error(bucket, wanted, buffer)
        return buffer

    return Future(finish)


def _second_half(
    state: PowerSGDState, group: ProcessGroup, matrices: list[Any], ps: list[Any]
) -> list[Any]:
    """Make each P orthonormal and return the averaged Q for it; collective."""
    for p in ps:
        orthonormalise(p, state.orthogonalization_epsilon)
    qs = [m.T @ p for m, p in zip(matrices, ps, strict=True)]
    memory = _packed(group, qs, qs[0].dtype)
    group.all_reduce(memory, "avg").wait()
    _unpack(memory, qs)
    return qs


def _pays(view: Array, state: PowerSGDState) -> bool:
    if view.ndim < 2:
        return False
    rows = view.shape[0]
    columns = view.size // max(rows, 1)
    thin = (rows + columns) * min(state.matrix_approximation_rank, rows, columns)
    return bool(thin * state.min_compression_rate < view.size)


def _packed(group: ProcessGroup, arrays: list[Any], dtype: Any) -> Array:
    """Return arrays one after another in memory of the group."""
    memory = group.empty(sum(array.size for array in arrays), dtype)
    start = 0
    for array in arrays:
        copy_into(memory[start : start + array.size], array.reshape(-1))
        start += array.size
    return memory


def _unpack(memory: Array, arrays: list[Any]) -> None:
    start = 0
    for array in arrays:
        copy_into(array, memory[start : start + array.size].reshape(array.shape))
        start += array.size
