import math

import pytest

from gradmesh.trainer.metric import log_loss, normalised_entropy


def test_log_loss_of_known_values():
    loss = log_loss([1, 0], [0.8, 0.4])

    assert loss == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)


def test_log_loss_of_a_certain_mistake_is_finite():
    assert 20 < log_loss([1], [0.0]) < 30


def test_guessing_the_base_rate_has_normalised_entropy_one():
    assert normalised_entropy([1, 0, 0, 0], [0.25] * 4) == pytest.approx(1.0)


def test_better_guesses_have_less_normalised_entropy():
    assert normalised_entropy([1, 0, 0, 0], [0.9, 0.1, 0.1, 0.1]) < 0.3


@pytest.mark.parametrize("guess", [[0.5], [], [1.5, 0.5], [-0.1, 0.5], [math.nan, 0.5]])
def test_bad_probabilities_are_refused(guess):
    with pytest.raises(ValueError, match="probabilities"):
        log_loss([0, 1], guess)


def test_labels_of_one_class_have_no_normalised_entropy():
    with pytest.raises(ValueError, match="both classes"):
        normalised_entropy([1, 1], [0.5, 0.5])
