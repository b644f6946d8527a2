"""PowerSGD: gradients as products of two thin matrices (Vogels and others, 2019).

A gradient M [n, m] is sent as P [n, r] = M Q and Q [m, r] = Mᵀ P; P is made orthonormal between the
two. The error of the product is added to the next gradient (error feedback); Q is the start of the
next iteration (warm start). Ranks draw the first Q from equal seeds.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from gradmesh.engine.backend import Array, array_module, view_of
from gradmesh.trainer.ddp.comm_hook import CommFuture, GradBucket
from gradmesh.trainer.ddp.comm_hooks.default import average
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup
from gradmesh.trainer.process_group.reduction import accumulation_dtype


@final
class PowerSGDState:
    """The state of the PowerSGD hooks: options, compression errors and matrices.

    Args:
        process_group: The ranks; None means those of the wrapper.
        matrix_approximation_rank: Columns of the thin matrices.
        start_power_sgd_iter: First iterations, which are averaged without compression.
        min_compression_rate: A gradient is compressed only if that saves at least this factor.
        use_error_feedback: Add the compression error to the next gradient.
        warm_start: Start from the last Q.
        orthogonalization_epsilon: Added to norms, against division by zero.
        random_seed: The same on every rank.

    Raises:
        ValueError: If it would start before buckets are rebuilt.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_power_sgd_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0.0,
        random_seed: int = 0,
    ) -> None:
        if (use_error_feedback or warm_start) and start_power_sgd_iter <= 1:
            raise ValueError(
                f"start_power_sgd_iter is {start_power_sgd_iter}; with error feedback or warm start"
                " it must be above 1, because buckets are rebuilt after the first iteration"
            )
        if matrix_approximation_rank < 1:
            raise ValueError(f"a rank of {matrix_approximation_rank}; it is at least 1")
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_power_sgd_iter = start_power_sgd_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.iter = 0
        self.numel_before = 0
        self.numel_after = 0
        self._random = np.random.default_rng(random_seed)
        self._errors: dict[int, Array] = {}
        self._last: dict[tuple[int, int], Array] = {}

    def compression_rate(self) -> float:
        """Return the ratio of elements without PowerSGD to elements sent."""
        return self.numel_before / self.numel_after if self.numel_after else 1.0

    def begin(self, bucket: GradBucket) -> bool:
        """Count the bucket; return whether it is compressed."""
        is_on = self.iter >= self.start_power_sgd_iter
        if bucket.is_last():
            self.iter += 1
        return is_on and not bucket.is_sparse()

    def add_error(self, bucket: GradBucket) -> Array | None:
        """Add the error of earlier iterations; return a copy of the gradient to send."""
        if not self.use_error_feedback:
            return None
        buffer = bucket.buffer()
        error = self._errors.get(bucket.index())
        if error is not None and error.size == buffer.size:
            buffer += error
        return buffer.copy()

    def keep_error(self, bucket: GradBucket, uncompressed: Array | None, sent: Array) -> None:
        """Keep the compression error of this iteration."""
        if uncompressed is not None:
            uncompressed -= sent
            self._errors[bucket.index()] = uncompressed

    def start(self, key: tuple[int, int], rows: int, width: int, like: Array) -> Array:
        """Return the Q to start with, orthonormal, the same on every rank."""
        last = self._last.get(key)
        if self.warm_start and last is not None and last.shape == (rows, width):
            return last
        xp = array_module(like)
        drawn = xp.asarray(self._random.standard_normal((rows, width)).astype(like.dtype))
        orthonormalise(drawn, self.orthogonalization_epsilon)
        return drawn

    def keep(self, key: tuple[int, int], q: Array) -> None:
        """Keep a Q for the next iteration."""
        if self.warm_start:
            kept = q.copy()
            orthonormalise(kept, self.orthogonalization_epsilon)
            self._last[key] = kept


def orthonormalise(matrix: Array, epsilon: float = 0.0) -> None:
    """Make the columns of a matrix orthonormal in place, one after another (Gram-Schmidt).

    A column that lies in the space of those before it becomes zero.
    """
    xp = array_module(matrix)
    least = 10 * float(np.finfo(matrix.dtype).eps)
    for column in range(matrix.shape[1]):
        here = matrix[:, column]
        length = float(xp.sqrt((here * here).sum()))
        before = matrix[:, :column]
        # Twice: one pass leaves rounding errors that are no longer orthogonal.
        for _ in range(2 if column else 0):
            here -= before @ (before.T @ here)
        norm = float(xp.sqrt((here * here).sum()))
        if norm <= least * length:
            here[...] = 0
        else:
            here /= matrix.dtype.type(norm + epsilon)


def power_sgd_hook(state: PowerSGDState, bucket: GradBucket) -> CommFuture:
    """Average with PowerSGD: matrices as low-rank products, other gradients uncompressed."""
    group = state.process_group or bucket.group
    if not state.begin(bucket):
        return average(group, bucket)
    uncompressed = state.add_error(bucket)
    views = bucket.gradients()
    thin = [index for index, view in enumerate(views) if _pays(view, state)]
    plain = [view for index, view in enumerate(views) if index not in set(thin)]
    rest = _packed(group, plain, bucket.buffer().dtype)
    rest_work = group.all_reduce(rest, "avg") if plain else None
    targets = [view_of(views[index], (views[index].shape[0], -1)) for index in thin]
    # Products and norms of two-byte floats would overflow.
    wide = accumulation_dtype(bucket.buffer().dtype)
    matrices = [target.astype(wide, copy=False) for target in targets]
    width = state.matrix_approximation_rank
    starts = [
        state.start((bucket.index(), index), m.shape[1], min(width, *m.shape), m)
        for index, m in zip(thin, matrices, strict=True)
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
            for index, target, p, q in zip(thin, targets, ps, qs, strict=True):
                target[...] = p @ q.T
                state.keep((bucket.index(), index), q)
        state.keep_error(bucket, uncompressed, bucket.buffer())
        return bucket.buffer()

    return CommFuture(finish)


def batched_power_sgd_hook(state: PowerSGDState, bucket: GradBucket) -> CommFuture:
    """Average with PowerSGD, the whole bucket as one square matrix: faster, less accurate."""
    group = state.process_group or bucket.group
    if not state.begin(bucket):
        return average(group, bucket)
    uncompressed = state.add_error(bucket)
    buffer = bucket.buffer()
    side = int(np.ceil(np.sqrt(buffer.size)))
    wide = accumulation_dtype(buffer.dtype)
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
        state.keep_error(bucket, uncompressed, buffer)
        return buffer

    return CommFuture(finish)


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
