import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmesh.trainer.metrics import (
    StreamingAuc,
    auc,
    calibration,
    log_loss,
    normalised_entropy,
)


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
def test_auc_of_one_class_is_refused(labels, scores, words):
    with pytest.raises(ValueError, match=words):
        auc(labels, scores)


@pytest.mark.parametrize("base", [0.5, 0.03, 0.0003])
def test_streaming_auc_is_close_to_the_exact_one(base):
    rng = np.random.default_rng(0)
    odds = rng.normal(np.log(base / (1 - base)), 1.5, 100_000)
    chances = 1 / (1 + np.exp(-odds))
    labels = rng.random(chances.size) < chances
    whole, parts = StreamingAuc(), [StreamingAuc(), StreamingAuc()]

    whole.add(labels, chances)
    for part, half in zip(parts, (slice(0, 40_000), slice(40_000, None)), strict=True):
        part.add(labels[half], chances[half])
    parts[0].counts += parts[1].counts

    assert whole.value() == pytest.approx(auc(labels, chances), abs=2e-5)
    assert parts[0].value() == whole.value()


def test_ends_of_the_range_and_equal_scores():
    metric = StreamingAuc()

    metric.add([0, 1, 0, 1], [0.0, 1.0, 0.5, 0.5])

    assert metric.value() == auc([0, 1, 0, 1], [0.0, 1.0, 0.5, 0.5])


def test_values_that_are_not_probabilities_are_refused():
    with pytest.raises(ValueError, match="apply sigmoid"):
        StreamingAuc().add([1], [1.5])
    with pytest.raises(ValueError, match="2 labels"):
        StreamingAuc().add([1, 0], [0.5])
    with pytest.raises(ValueError, match="both classes"):
        StreamingAuc().value()


def test_log_loss_of_known_values():
    loss = log_loss([1, 0], [0.8, 0.4])

    assert loss == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)


def test_log_loss_of_a_certain_mistake_is_finite():
    assert 20 < log_loss([1], [0.0]) < 30


def test_predicting_the_base_rate_has_normalised_entropy_one():
    assert normalised_entropy([1, 0, 0, 0], [0.25] * 4) == pytest.approx(1.0)


def test_better_predictions_have_lower_normalised_entropy():
    assert normalised_entropy([1, 0, 0, 0], [0.9, 0.1, 0.1, 0.1]) < 0.3


@pytest.mark.parametrize("guess", [[0.5], [], [1.5, 0.5], [-0.1, 0.5], [math.nan, 0.5]])
def test_bad_probabilities_are_refused(guess):
    with pytest.raises(ValueError, match="probabilities"):
        log_loss([0, 1], guess)


def test_labels_of_one_class_have_no_normalised_entropy():
    with pytest.raises(ValueError, match="both classes"):
        normalised_entropy([1, 1], [0.5, 0.5])


def test_calibration_is_expected_over_real_clicks():
    assert calibration([1, 0, 0, 0], [0.5, 0.0, 0.0, 0.0]) == 0.5


@pytest.mark.parametrize(("labels", "guess"), [([0, 0], [0.1, 0.1]), ([1], [0.1, 0.1])])
def test_calibration_without_an_answer_is_refused(labels, guess):
    with pytest.raises(ValueError, match="labels"):
        calibration(labels, guess)
