import pytest

from gradmesh.trainer.metric import calibration


def test_calibration_is_expected_over_real_clicks():
    assert calibration([1, 0, 0, 0], [0.5, 0.0, 0.0, 0.0]) == 0.5


@pytest.mark.parametrize(("labels", "guess"), [([0, 0], [0.1, 0.1]), ([1], [0.1, 0.1])])
def test_calibration_without_an_answer_is_refused(labels, guess):
    with pytest.raises(ValueError, match="labels"):
        calibration(labels, guess)
