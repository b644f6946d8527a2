"""Draws ids whose frequency falls off as a power of their rank: few hot, many rare."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt


@final
class PowerLaw:
    """Ids of several features, each with frequency about `1 / rank**alpha`.

    By the closed inverse of the distribution, so memory does not grow with the rows. Ranks
    are then spread over the table by a fixed bijection: a hot id is as likely on one shard
    as on another.

    Args:
        rows: How many ids the feature of each column has.
        alpha: The exponent; 0 is uniform.
        features: Which feature each column belongs to; columns of one share their hot ids. Each
            its own by default.
    """

    def __init__(
        self, rows: Sequence[int], alpha: float, features: Sequence[int] | None = None
    ) -> None:
        if min(rows) < 1 or alpha < 0:
            raise ValueError(f"rows must be positive and alpha not negative: {rows}, {alpha}")
        # The closed form has a pole at 1, where it turns into a logarithm.
        self._power = 1.0 - (alpha if abs(alpha - 1.0) > 1e-6 else 1.0 + 1e-6)
        self._rows = np.array(rows, np.int64)
        self._span = (self._rows + 1.0) ** self._power - 1.0
        self._factors = np.array([_coprime(count) for count in rows], np.int64)
        places = range(len(rows)) if features is None else features
        self._shifts = np.array(
            [(31 * i + 7) % n for i, n in zip(places, rows, strict=True)], np.int64
        )

    def ids(self, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Turn numbers drawn uniformly from [0, 1) into ids.

        Args:
            uniform: float64 [batch, columns]; used as scratch, loses its values.

        Returns:
            int64 [batch, columns].
        """
        uniform *= self._span
        uniform += 1.0
        # (1 + span u) ** (1 / power), by log and exp: faster than power, and in place.
        np.log(uniform, out=uniform)
        uniform *= 1.0 / self._power
        np.exp(uniform, out=uniform)
        ids = uniform.astype(np.int64)
        ids -= 1
        # Rounding may carry the last id one too far.
        np.minimum(ids, self._rows - 1, out=ids)
        ids *= self._factors
        ids += self._shifts
        ids %= self._rows
        return ids


def _coprime(rows: int) -> int:
    """Return a factor near the golden section of `rows` that shares no divisor with it."""
    factor = max(1, int(rows * 0.6180339887))
    while math.gcd(factor, rows) != 1:
        factor += 1
    return factor
