"""How good the model is on held-out data, measured by all ranks together."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.autograd import no_grad
from gradmesh.trainer.data import Batch, Blocks
from gradmesh.trainer.data.teacher import sigmoid
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.metric import (
    StreamingAuc,
    auc,
    calibration,
    log_loss,
    normalised_entropy,
)
from gradmesh.trainer.process_group import ProcessGroup

Model = Callable[[Any, Any], Any]


def batches_of(
    blocks: Blocks, batch_size: int, most: int | None, rank: int = 0, world_size: int = 1
) -> Iterator[Batch]:
    """Give a rank's share of a split in batches of at most a size.

    Args:
        blocks: The split.
        batch_size: Most samples of a batch.
        most: How many samples in all; None for all there are.
        rank: Whose share.
        world_size: Of how many.
    """
    left, number = most, rank
    while left is None or left > 0:
        block = blocks.read(0, number)
        if block is None:
            return
        samples = block.samples if left is None else block.samples.part(0, left)
        for begin in range(0, samples.size, batch_size):
            yield samples.part(begin, begin + batch_size)
        left = None if left is None else left - samples.size
        number += world_size


def score(model: Model, batches: Iterator[Batch]) -> NDArray[np.float32]:
    """Return labels, guessed and best probabilities, float32 [3, samples]; NaN is no best."""
    parts = []
    with no_grad():
        for batch in batches:
            guess = sigmoid(model(batch.dense, batch.ids).data)
            best = np.full(batch.size, np.nan, np.float32) if batch.best is None else batch.best
            parts.append(np.stack([batch.labels, guess, best]).astype(np.float32))
    return np.concatenate(parts, axis=1) if parts else np.empty((3, 0), np.float32)


def evaluate(
    model: Model,
    blocks: Blocks,
    group: ProcessGroup,
    batches: int,
    batch_size: int,
    *,
    streaming: bool = False,
) -> dict[str, float]:
    """Score held-out samples, each rank its share, and measure.

    Args:
        model: Reads rows as they are now; parameters equal on all ranks.
        blocks: The samples.
        group: Collective: every rank calls it and gets the same figures.
        batches: How many batches in all; 0 for all there are.
        batch_size: Samples in each.
        streaming: Whether AUC comes from a histogram instead of all scores.

    Returns:
        auc, log_loss, normalised_entropy and calibration; best_auc and best_log_loss if known.

    Raises:
        DataError: There are no samples, or of one class only.
    """
    if not batches and blocks.count() is None:
        raise DataError("generated data never end: set job.eval_batches to how many shall count")
    most = len(range(group.rank, batches, group.size)) * batch_size if batches else None
    scored = score(model, batches_of(blocks, batch_size, most, group.rank, group.size))
    try:
        return _streaming(scored, group) if streaming else _exact(scored, group)
    except ValueError as error:
        raise DataError(f"the held-out data cannot be measured on: {error}") from error


def _exact(scored: NDArray[np.float32], group: ProcessGroup) -> dict[str, float]:
    sizes = np.empty((group.size, 1), np.int64)
    group.all_gather(list(sizes), np.array([scored.shape[1]], np.int64)).wait()
    gathered = [np.empty((3, int(size)), np.float32) for size in sizes[:, 0]]
    group.all_gather(gathered, scored).wait()
    labels, guesses, best = np.concatenate(gathered, axis=1)
    figures = {
        "auc": auc(labels, guesses),
        "log_loss": log_loss(labels, guesses),
        "normalised_entropy": normalised_entropy(labels, guesses),
        "calibration": calibration(labels, guesses),
    }
    if not np.isnan(best).any():
        figures |= {"best_auc": auc(labels, best), "best_log_loss": log_loss(labels, best)}
    return figures


def _streaming(scored: NDArray[np.float32], group: ProcessGroup) -> dict[str, float]:
    """Measure by sums alone, which add up over the ranks."""
    labels, guesses, best = scored
    found = {"": guesses, "best_": best}
    if _any(group, bool(np.isnan(best).any())):
        del found["best_"]
    figures: dict[str, float] = {}
    for prefix, chances in found.items():
        histogram = StreamingAuc()
        histogram.add(labels, chances)
        group.all_reduce(histogram.counts).wait()
        own = log_loss(labels, chances) * labels.size if labels.size else 0.0
        sums = np.array([labels.size, labels.sum(), chances.sum(), own], np.float64)
        group.all_reduce(sums).wait()
        count, clicks, expected, loss = sums
        figures |= {f"{prefix}auc": histogram.value(), f"{prefix}log_loss": float(loss / count)}
        if not prefix:
            rate = clicks / count
            base = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
            figures["normalised_entropy"] = float(loss / count / base)
            figures["calibration"] = float(expected / clicks)
    return figures


def _any(group: ProcessGroup, here: bool) -> bool:
    told = np.array([here], np.int64)
    group.all_reduce(told).wait()
    return bool(told[0])
