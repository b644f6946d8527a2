"""All figures over more scores than memory holds: a histogram and four sums."""

from typing import final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.metric.entropy import log_loss
from gradmesh.trainer.metric.streaming_auc import StreamingAuc


@final
class RunningFigures:
    """Collects labels and probabilities part by part, and keeps none of them."""

    def __init__(self) -> None:
        self._histogram = StreamingAuc()
        # Samples, clicks, expected clicks, and the sum of the log losses.
        self._sums = np.zeros(4, np.float64)

    @property
    def totals(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """What is kept; sums over ranks are the totals of all of them."""
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
