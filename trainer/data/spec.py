"""What generated click data look like."""

from dataclasses import dataclass
from typing import Literal, final

from gradmesh.trainer.data.fields import Fields


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClickSpec:
    """Describes generated click data; equal specs give equal data on every process."""

    seed: int = 0
    """Chooses the teacher and all samples."""
    dense_features: int = 8
    """Numbers that come with each sample, standard normal."""
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
    """Most rows of a feature that the teacher tells apart, so that its memory has a bound."""

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
