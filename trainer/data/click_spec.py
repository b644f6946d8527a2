"""The shape of generated click data: its features, its cardinalities (Criteo's, too), its skew."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.data.samples import Fields


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClickSpec:
    """Describes generated click data; equal specs give equal data on every process."""

    seed: int = 0
    """Chooses the teacher and all samples."""
    dense_features: int = 8
    """Dense values of a sample, standard normal."""
    rows: tuple[int, ...] = (3000, 2000, 1000, 500, 300, 200, 100, 50)
    """How many ids each categorical feature has."""
    alpha: float = 1.05
    """Exponent of the ids' power law; 0 is uniform."""
    base_rate: float = 0.25
    """Share of samples with a click."""
    spread: float = 1.4
    """Standard deviation of the true log-odds: the more, the better the best AUC."""
    shares: tuple[float, float, float] = (0.5, 0.1, 0.4)
    """How the spread's variance divides between single ids, pairs, and dense features."""
    latent_dim: int = 4
    """Length of the teacher's latent vectors."""
    hots: tuple[int, ...] | None = None
    """How many ids of each feature a sample has; one each if None. The teacher averages them."""
    dense_law: Literal["normal", "log-normal"] = "normal"
    """How dense features are distributed; the teacher sees the logarithm of log-normal ones."""
    teacher_rows: int | None = None
    """Most rows of a feature that the teacher distinguishes; bounds its memory."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {rule}, it is {getattr(self, name)!r}"
            for name, rule, fine in (
                ("seed", "in [0, 2**63)", 0 <= self.seed < 2**63),
                ("dense_features", "at least 1", self.dense_features >= 1),
                ("hots", "one positive count for each of rows", _fits(self.hots, self.rows)),
                ("dense_law", "normal or log-normal", self.dense_law in ("normal", "log-normal")),
                ("teacher_rows", "at least 1", (self.teacher_rows or 1) >= 1),
                ("rows", "one or more positive counts", bool(self.rows) and min(self.rows) >= 1),
                ("alpha", "at least 0", self.alpha >= 0),
                ("base_rate", "between 0 and 1", 0 < self.base_rate < 1),
                ("spread", "positive", self.spread > 0),
                ("shares", "three positive numbers", min(self.shares) > 0),
                ("latent_dim", "at least 1", self.latent_dim >= 1),
            )
            if not fine
        ]
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def fields(self) -> Fields:
        """Which features a sample has."""
        return Fields(self.dense_features, self.rows, self.hots)


def _fits(hots: tuple[int, ...] | None, rows: tuple[int, ...]) -> bool:
    return hots is None or (len(hots) == len(rows) and min(hots) >= 1)


KAGGLE_ROWS: Final = (
    1396,
    553,
    2594031,
    698469,
    290,
    23,
    12048,
    608,
    3,
    65156,
    5309,
    2186509,
    3128,
    26,
    12750,
    1537323,
    10,
    5002,
    2118,
    4,
    1902327,
    17,
    15,
    135790,
    94,
    84305,
)
"""How many values each categorical feature of Criteo's Kaggle data has."""

MULTI_HOT: Final = (
    3,
    2,
    1,
    2,
    6,
    1,
    1,
    1,
    1,
    7,
    3,
    8,
    1,
    6,
    9,
    5,
    1,
    1,
    1,
    12,
    100,
    27,
    10,
    3,
    1,
    1,
)
"""How many ids of each feature a sample has in MLPerf's multi-hot data."""

_LEAST_ROWS = 3
# A feature's effects are learned from samples; the teacher need not distinguish more rows than
# this.
_TEACHER_ROWS = 1 << 16


def criteo_spec(
    *,
    seed: int = 0,
    scale: float = 1.0,
    alpha: float = 1.05,
    multi_hot: bool = False,
    base_rate: float = 0.25,
) -> ClickSpec:
    """Return the spec of data in the shape of Criteo's.

    Args:
        seed: Chooses the teacher and all samples.
        scale: Factor of the cardinalities; 1 has 9.2 million ids.
        alpha: Exponent of the ids' power law; 0 is uniform.
        multi_hot: Whether features have several ids, as many as MLPerf's.
        base_rate: Share of samples with a click.
    """
    return ClickSpec(
        seed=seed,
        dense_features=13,
        rows=tuple(max(_LEAST_ROWS, round(count * scale)) for count in KAGGLE_ROWS),
        alpha=alpha,
        base_rate=base_rate,
        hots=MULTI_HOT if multi_hot else None,
        dense_law="log-normal",
        teacher_rows=_TEACHER_ROWS,
    )


@final
class PowerLaw:
    """Ids of several features, each with frequency about `1 / rank**alpha`.

    By the closed inverse of the distribution, so memory does not grow with the rows. A fixed
    bijection then spreads the ranks over the table: a hot id is as likely on one shard as on
    another.

    Args:
        rows: How many ids the feature of each column has.
        alpha: The exponent; 0 is uniform.
        features: Feature of each column; columns of one feature share their hot ids. Each column
            is a feature of its own by default.
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
        # Rounding may carry the last id past the end.
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
