"""Log loss, and log loss as a share of what always guessing the base rate costs."""

import numpy as np
import numpy.typing as npt

_FLOOR = 1e-12


def log_loss(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the mean cross entropy in nats.

    Args:
        labels: [n], 0 or 1.
        probabilities: [n], in [0, 1]; kept 1e-12 away from both ends.

    Raises:
        ValueError: Shapes differ, there are no samples, or a probability is none.
    """
    truth = np.asarray(labels, np.float64).reshape(-1)
    guess = np.asarray(probabilities, np.float64).reshape(-1)
    if truth.shape != guess.shape or not truth.size:
        raise ValueError(f"{truth.size} labels do not fit {guess.size} probabilities")
    if not (guess.min() >= 0 and guess.max() <= 1):
        raise ValueError("probabilities must lie in [0, 1]; apply sigmoid to logits first")
    guess = np.clip(guess, _FLOOR, 1 - _FLOOR)
    return float(-np.mean(truth * np.log(guess) + (1 - truth) * np.log1p(-guess)))


def normalised_entropy(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the log loss divided by the entropy of the labels' base rate.

    1 means no better than always guessing the base rate; lower is better.

    Raises:
        ValueError: As log_loss, or the labels are all the same.
    """
    rate = float(np.mean(np.asarray(labels, np.float64)))
    if not 0 < rate < 1:
        raise ValueError("normalised entropy needs both classes among the labels")
    base = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    return log_loss(labels, probabilities) / float(base)
