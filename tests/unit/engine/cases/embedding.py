"""The op suite: Rows of tables and bags of them."""

from __future__ import annotations

import numpy as np

from tests.unit.engine.cases.case import NO_IDS, Case, Fixed, distinct, with_index

CASES = [
    Case(
        "take-rows",
        lambda t, f, r, i: f.take_rows(r, i),
        with_index((4, 3), [0, 2, 2, 0, 2, 3]),
        lambda t, f, r, i: r[i],
    ),
    Case(
        "take-rows-2d",
        lambda t, f, r, i: f.take_rows(r, i),
        with_index((4, 3), [[0, 2], [2, 0]]),
        lambda t, f, r, i: r[i],
    ),
    Case(
        "take-rows-empty",
        lambda t, f, r, i: f.take_rows(r, i),
        with_index((4, 3), NO_IDS),
        lambda t, f, r, i: r[i],
    ),
    Case(
        "embedding",
        lambda t, f, i, w: f.embedding(i, w),
        lambda rng: [Fixed(np.array([[0, 2], [3, 0]])), rng.normal(size=(4, 3))],
    ),
    *[
        Case(
            f"embedding-bag-{mode}",
            lambda t, f, i, w, mode=mode: f.embedding_bag(i, w, mode=mode),
            lambda rng: [Fixed(np.array([[0, 2, 0], [3, 0, 3]])), *distinct((4, 3))(rng)],
        )
        for mode in ("sum", "mean", "max")
    ],
    *[
        Case(
            f"embedding-bag-ragged-{mode}",
            lambda t, f, i, o, w, mode=mode: f.embedding_bag(i, w, o, mode=mode, padding_idx=1),
            lambda rng: [
                Fixed(np.array([0, 1, 2, 2, 3, 1, 4])),
                Fixed(np.array([0, 0, 3, 5, 6])),
                *distinct((5, 3))(rng),
            ],
        )
        for mode in ("sum", "mean", "max")
    ],
    Case(
        "embedding-bag-weighted",
        lambda t, f, i, o, w, p: f.embedding_bag(
            i, w, o, mode="sum", per_sample_weights=p, include_last_offset=True
        ),
        lambda rng: [
            Fixed(np.array([0, 1, 2, 2, 3])),
            Fixed(np.array([0, 2, 2, 5])),
            rng.normal(size=(5, 3)),
            rng.normal(size=5),
        ],
    ),
]
