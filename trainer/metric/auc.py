"""Area under the ROC curve, exact."""

from typing import Any

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
