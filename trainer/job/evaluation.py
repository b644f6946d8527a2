"""How good the model is on held-out data, measured by all ranks together."""

from typing import Any

import numpy as np

from gradmesh.engine.autograd import no_grad
from gradmesh.trainer.data import ClickData
from gradmesh.trainer.data.teacher import sigmoid
from gradmesh.trainer.metric import auc, calibration, log_loss, normalised_entropy
from gradmesh.trainer.models import DLRM
from gradmesh.trainer.process_group import ProcessGroup


def evaluate(
    model: DLRM, data: ClickData, group: ProcessGroup, batches: int, batch_size: int
) -> dict[str, float]:
    """Score the first batches of the test split, each rank its share, and measure.

    Args:
        model: Reads rows as they are now; parameters equal on all ranks.
        data: Where samples come from, and the best possible scores.
        group: Collective: every rank calls it and gets the same figures.
        batches: How many batches in all.
        batch_size: Samples in each.

    Returns:
        auc, best_auc, log_loss, best_log_loss, normalised_entropy and calibration.
    """
    shares = [range(rank, batches, group.size) for rank in range(group.size)]
    scores = _score(model, data, shares[group.rank], batch_size)
    gathered = [np.empty((3, len(share) * batch_size), np.float32) for share in shares]
    group.all_gather(gathered, scores).wait()
    labels, guesses, best = np.concatenate(gathered, axis=1)
    return {
        "auc": auc(labels, guesses),
        "best_auc": auc(labels, best),
        "log_loss": log_loss(labels, guesses),
        "best_log_loss": log_loss(labels, best),
        "normalised_entropy": normalised_entropy(labels, guesses),
        "calibration": calibration(labels, guesses),
    }


def _score(model: DLRM, data: ClickData, share: range, batch_size: int) -> Any:
    """Return labels, guessed and best probabilities, float32 [3, samples]."""
    out = np.empty((3, len(share), batch_size), np.float32)
    with no_grad():
        for place, index in enumerate(share):
            batch = data.batch("test", index, batch_size)
            guess = sigmoid(model(batch.dense, batch.ids).data)
            out[:, place] = batch.labels, guess, batch.best
    return out.reshape(3, -1)
