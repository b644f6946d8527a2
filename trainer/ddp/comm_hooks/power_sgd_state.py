"""What PowerSGD remembers between iterations, and its one piece of linear algebra."""

from __future__ import annotations

from typing import final

import numpy as np

from gradmesh.engine.backend import Array, array_module
from gradmesh.trainer.ddp.grad_bucket import GradBucket
from gradmesh.trainer.process_group import ProcessGroup


@final
class PowerSGDState:
    """Options and memory of the PowerSGD hooks.

    Args:
        process_group: The ranks; None means those of the wrapper.
        matrix_approximation_rank: Columns of the thin matrices.
        start_power_sgd_iter: Iterations that are averaged plainly before.
        min_compression_rate: A gradient is compressed only if that saves at least this factor.
        use_error_feedback: Add what was missed to the next gradient.
        warm_start: Begin with the last Q.
        orthogonalization_epsilon: Added to norms, against division by zero.
        random_seed: The same on every rank.

    Raises:
        ValueError: If it would start before buckets have their final layout.
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
                " it must be above 1, because buckets are laid out anew after the first iteration"
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
        """Return how many times fewer elements travelled than without PowerSGD."""
        return self.numel_before / self.numel_after if self.numel_after else 1.0

    def begin(self, bucket: GradBucket) -> bool:
        """Count the bucket; return whether it is compressed."""
        is_on = self.iter >= self.start_power_sgd_iter
        if bucket.is_last():
            self.iter += 1
        return is_on and not bucket.is_sparse()

    def add_error(self, bucket: GradBucket) -> Array | None:
        """Add what earlier iterations missed; return the gradient as it should travel."""
        if not self.use_error_feedback:
            return None
        buffer = bucket.buffer()
        missed = self._errors.get(bucket.index())
        if missed is not None and missed.size == buffer.size:
            buffer += missed
        return buffer.copy()

    def keep_error(self, bucket: GradBucket, wanted: Array | None, sent: Array) -> None:
        """Note what this iteration missed."""
        if wanted is not None:
            wanted -= sent
            self._errors[bucket.index()] = wanted

    def start(self, key: tuple[int, int], rows: int, width: int, like: Array) -> Array:
        """Return the Q to begin with, orthonormal, the same on every rank."""
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
