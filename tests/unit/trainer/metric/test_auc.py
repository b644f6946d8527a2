import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmesh.trainer.metric import auc


def by_pairs(labels, scores):
    clicks = [s for y, s in zip(labels, scores, strict=True) if y]
    others = [s for y, s in zip(labels, scores, strict=True) if not y]
    wins = sum((c > o) + 0.5 * (c == o) for c in clicks for o in others)
    return wins / (len(clicks) * len(others))


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_auc_counts_pairs_with_ties_half(samples):
    labels, scores = zip(*samples, strict=True)
    if len(set(labels)) < 2:
        labels = (not labels[0], *labels[1:])
    if len(set(labels)) < 2:
        labels = (not labels[0], *labels[1:])

    assert auc(labels, scores) == pytest.approx(by_pairs(labels, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], 0.0), ([5, 5, 5, 5], 0.5), ([1, 3, 2, 4], 0.75)],
)
def test_auc_of_known_orders(scores, expected):
    assert auc([0, 0, 1, 1], scores) == expected


def test_auc_does_not_depend_on_the_order_of_samples():
    rng = np.random.default_rng(0)
    labels = rng.random(10_000) < 0.3
    scores = rng.integers(0, 50, 10_000)
    shuffled = rng.permutation(10_000)

    assert auc(labels, scores) == auc(labels[shuffled], scores[shuffled])


@pytest.mark.parametrize(
    ("labels", "scores", "words"),
    [
        ([1, 1], [0.1, 0.2], "both classes"),
        ([0, 0], [0.1, 0.2], "both classes"),
        ([], [], "both classes"),
        ([0, 1], [0.1], "do not fit"),
        ([0, 1], [0.1, np.nan], "NaN"),
    ],
)
def test_auc_refuses_what_has_no_answer(labels, scores, words):
    with pytest.raises(ValueError, match=words):
        auc(labels, scores)
