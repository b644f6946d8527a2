"""Metrics of the model on held-out data, computed by all ranks together; early stopping."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.autograd import no_grad
from gradmesh.trainer.data import Batch, Blocks
from gradmesh.trainer.data.click import sigmoid
from gradmesh.trainer.data.samples import BadLines
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.metrics import (
    RunningMetrics,
    auc,
    calibration,
    log_loss,
    normalised_entropy,
)
from gradmesh.trainer.process_group import ProcessGroup

Model = Callable[[Any, Any], Any]


def batches_of(
    blocks: Blocks,
    batch_size: int,
    most: int | None,
    rank: int = 0,
    world_size: int = 1,
    bad_lines: BadLines | None = None,
) -> Iterator[Batch]:
    """Yield a rank's share of a split in batches of at most a size.

    Args:
        blocks: The split.
        batch_size: Most samples of a batch.
        most: Samples in all; None for all there are.
        rank: Which rank.
        world_size: Number of ranks.
        bad_lines: Counts the lines that are dropped.

    Raises:
        DataError: The data cannot be read, or hold too many bad lines.
    """
    left, number = most, rank
    while left is None or left > 0:
        block = blocks.read(0, number)
        if block is None:
            return
        if bad_lines is not None:
            bad_lines.add(block.bad)
        samples = block.samples if left is None else block.samples.part(0, left)
        for begin in range(0, samples.size, batch_size):
            yield samples.part(begin, begin + batch_size)
        left = None if left is None else left - samples.size
        number += world_size


def scores(model: Model, batches: Iterable[Batch]) -> Iterator[NDArray[np.float32]]:
    """Yield labels, predicted and best probabilities (NaN if unknown) by batch, float32 [3, n]."""
    for batch in batches:
        with no_grad():
            guess = sigmoid(model(batch.dense, batch.ids).data)
        best = np.full(batch.size, np.nan, np.float32) if batch.best is None else batch.best
        yield np.stack([batch.labels, guess, best]).astype(np.float32)


def evaluate(
    model: Model,
    blocks: Blocks,
    group: ProcessGroup,
    batches: int,
    batch_size: int,
    *,
    streaming: bool = False,
    bad_lines: BadLines | None = None,
) -> dict[str, float]:
    """Score held-out samples, each rank its share, and measure.

    Args:
        model: Reads the current rows; its parameters are equal on all ranks.
        blocks: The samples.
        group: All ranks; every rank calls this and gets the same metrics.
        batches: How many batches in all; 0 for all there are.
        batch_size: Samples in each.
        streaming: Whether metrics come from a histogram and sums, so that no score is kept.
        bad_lines: Counts the lines that are dropped.

    Returns:
        auc, log_loss, normalised_entropy and calibration; best_auc and best_log_loss if known.

    Raises:
        DataError: There are no samples, or of one class only, or too many bad lines.
    """
    if not batches and blocks.count() is None:
        raise DataError("generated data never end: set job.eval_batches to a number of batches")
    most = len(range(group.rank, batches, group.size)) * batch_size if batches else None
    own = batches_of(blocks, batch_size, most, group.rank, group.size, bad_lines)
    parts = scores(model, own)
    try:
        return _streaming(parts, group) if streaming else _exact(parts, group)
    except ValueError as error:
        raise DataError(f"the held-out data cannot be scored: {error}") from error


def _exact(parts: Iterator[NDArray[np.float32]], group: ProcessGroup) -> dict[str, float]:
    scored = np.concatenate([np.empty((3, 0), np.float32), *parts], axis=1)
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


def _streaming(parts: Iterator[NDArray[np.float32]], group: ProcessGroup) -> dict[str, float]:
    """Compute metrics from sums alone, which add up over the ranks."""
    guessed, best, unknown = RunningMetrics(), RunningMetrics(), np.zeros(1, np.int64)
    for labels, guesses, chances in parts:
        guessed.add(labels, guesses)
        unknown += int(np.isnan(chances).sum())
        if not unknown:
            best.add(labels, chances)
    for total in (*guessed.totals, *best.totals, unknown):
        group.all_reduce(total).wait()
    figures = guessed.values()
    if not unknown:
        known = best.values()
        figures |= {"best_auc": known["auc"], "best_log_loss": known["log_loss"]}
    return figures


@final
class EarlyStopping:
    """Ends training when the loss has not improved for some evaluations.

    Args:
        patience: Evaluations in a row without improvement that end training; 0 for never.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._best = math.inf
        self._without_gain = 0

    def should_stop(self, loss: float) -> bool:
        """Record the loss of an evaluation; return whether to stop."""
        if loss < self._best:
            self._best, self._without_gain = loss, 0
        else:
            self._without_gain += 1
        return 0 < self._patience <= self._without_gain
