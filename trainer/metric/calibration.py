"""Whether a model promises as many clicks as come."""

import numpy as np
import numpy.typing as npt


def calibration(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return expected clicks divided by clicks; 1 is right, above is too hopeful.

    Raises:
        ValueError: Shapes differ, or there is no click.
    """
    truth = np.asarray(labels, np.float64).reshape(-1)
    guess = np.asarray(probabilities, np.float64).reshape(-1)
    if truth.shape != guess.shape:
        raise ValueError(f"{truth.size} labels do not fit {guess.size} probabilities")
    if not truth.sum():
        raise ValueError("calibration needs at least one click among the labels")
    return float(guess.sum() / truth.sum())
