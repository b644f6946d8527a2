"""Metrics of click models: AUC, exact and streaming, log loss, entropy, calibration."""

from typing import Any, final

import numpy as np
import numpy.typing as npt


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Return the chance that a random click scores above a random non-click.

    Equal scores count half. By ranks, in O(n log n) and whole numbers, so the result does
    not depend on the order of the samples.

    Args:
        labels: [n], above 0.5 means a click.
        scores: [n], any numbers that grow with the chance of a click.

    Raises:
        ValueError: Shapes differ, a score is NaN, or the labels are all the same.
    """
    clicked = np.asarray(labels).reshape(-1) > 0.5
    values: npt.NDArray[Any] = np.asarray(scores).reshape(-1)
    if clicked.shape != values.shape:
        raise ValueError(f"{clicked.size} labels do not fit {values.size} scores")
    if np.isnan(values).any():
        raise ValueError("scores hold NaN; the model has diverged")
    clicks = int(clicked.sum())
    others = clicked.size - clicks
    if not clicks or not others:
        raise ValueError(f"AUC needs both classes; there are {clicks} clicks, {others} others")
    order = np.argsort(values)
    # Twice the mean rank of each run of equal scores: first + last rank, a whole number.
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])
    ends = np.r_[starts[1:], values.size]
    clicks_in_run = np.add.reduceat(clicked[order].astype(np.int64), starts)
    doubled = int(np.dot(clicks_in_run, starts + ends + 1))
    return (doubled - clicks * (clicks + 1)) / (2 * clicks * others)


@final
class StreamingAuc:
    """Collects scores in bins; scores of one bin count as equal.

    Scores are cut finely near 0 and 1, by their log-odds, where clicks with small rates lie. The
    error is at most half the chance that a click and a non-click fall into the same bin.

    Args:
        bins: How many.
    """

    def __init__(self, bins: int = 1 << 16) -> None:
        if bins < 2:
            raise ValueError(f"bins must be at least 2, it is {bins}")
        self.counts: npt.NDArray[np.int64] = np.zeros((2, bins), np.int64)
        """int64 [2, bins]: non-clicks and clicks. Sums over ranks are the histogram of all."""

    def add(self, labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> None:
        """Count samples.

        Args:
            labels: [n], above 0.5 means a click.
            probabilities: [n], in [0, 1].

        Raises:
            ValueError: Shapes differ, or a probability is none.
        """
        clicked = np.asarray(labels).reshape(-1) > 0.5
        values: npt.NDArray[Any] = np.asarray(probabilities, np.float64).reshape(-1)
        if clicked.shape != values.shape:
            raise ValueError(f"{clicked.size} labels do not fit {values.size} probabilities")
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise ValueError("probabilities must lie in [0, 1]; apply sigmoid to logits first")
        bins = self.counts.shape[1]
        with np.errstate(divide="ignore"):
            odds = np.log(values) - np.log1p(-values)
        # 16 either way covers all of float32's probabilities but the very last ones.
        places = np.clip((odds + 16) * (bins / 32), 0, bins - 1).astype(np.int64)
        for kind in (0, 1):
            chosen = places[clicked == bool(kind)]
            self.counts[kind] += np.bincount(chosen, minlength=bins)

    def value(self) -> float:
        """Return the AUC of all samples so far.

        Raises:
            ValueError: The labels are all the same.
        """
        others, clicks = self.counts
        pairs = int(clicks.sum()) * int(others.sum())
        if not pairs:
            raise ValueError("AUC needs both classes among the labels")
        below = np.cumsum(others) - others
        return float(np.dot(clicks.astype(np.float64), below + others / 2) / pairs)


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


def calibration(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return expected clicks divided by clicks; 1 is calibrated, above 1 predicts too many clicks.

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


@final
class RunningMetrics:
    """Collects labels and probabilities part by part, and keeps none of them."""

    def __init__(self) -> None:
        self._histogram = StreamingAuc()
        # Samples, clicks, expected clicks, and the sum of the log losses.
        self._sums = np.zeros(4, np.float64)

    @property
    def totals(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The totals so far; their sums over ranks are the totals of all ranks."""
        return self._histogram.counts, self._sums

    def add(self, labels: npt.NDArray[np.float32], probabilities: npt.NDArray[np.float32]) -> None:
        """Count samples.

        Raises:
            ValueError: Shapes differ, or a probability is none.
        """
        if not labels.size:
            return
        self._histogram.add(labels, probabilities)
        loss = log_loss(labels, probabilities) * labels.size
        clicks, expected = labels.sum(dtype=np.float64), probabilities.sum(dtype=np.float64)
        self._sums += (labels.size, clicks, expected, loss)

    def values(self) -> dict[str, float]:
        """Return auc, log_loss, normalised_entropy and calibration of all samples so far.

        Raises:
            ValueError: The labels are all the same.
        """
        area = self._histogram.value()
        count, clicks, expected, loss = self._sums.tolist()
        rate = clicks / count
        base = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        return {
            "auc": area,
            "log_loss": loss / count,
            "normalised_entropy": float(loss / count / base),
            "calibration": expected / clicks,
        }
