import numpy as np
import pytest

from gradmesh.trainer.metric import StreamingAuc, auc


@pytest.mark.parametrize("base", [0.5, 0.03, 0.0003])
def test_close_to_the_exact_one(base):
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


def test_what_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="apply sigmoid"):
        StreamingAuc().add([1], [1.5])
    with pytest.raises(ValueError, match="2 labels"):
        StreamingAuc().add([1, 0], [0.5])
    with pytest.raises(ValueError, match="both classes"):
        StreamingAuc().value()
