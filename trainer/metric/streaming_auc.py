"""AUC over more scores than memory holds: a histogram of probabilities that adds up over ranks."""

from typing import Any, final

import numpy as np
import numpy.typing as npt


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
