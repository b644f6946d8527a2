"""Generated data in the shape of Criteo's: its features, its cardinalities, its skew."""

from typing import Final

from gradmesh.trainer.data.spec import ClickSpec

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
# A feature's effects are learned from samples; more than this the teacher need not tell apart.
_TEACHER_ROWS = 1 << 16


def criteo_spec(
    *,
    seed: int = 0,
    scale: float = 1.0,
    alpha: float = 1.05,
    multi_hot: bool = False,
    base_rate: float = 0.25,
) -> ClickSpec:
    """Return what data in the shape of Criteo's look like.

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
