"""How good a click model is: AUC, exact and streaming, log loss, entropy, calibration."""

from gradmesh.trainer.metric.auc import auc as auc
from gradmesh.trainer.metric.calibration import calibration as calibration
from gradmesh.trainer.metric.entropy import log_loss as log_loss
from gradmesh.trainer.metric.entropy import normalised_entropy as normalised_entropy
from gradmesh.trainer.metric.running import RunningFigures as RunningFigures
from gradmesh.trainer.metric.streaming_auc import StreamingAuc as StreamingAuc

__all__ = [
    "RunningFigures",
    "StreamingAuc",
    "auc",
    "calibration",
    "log_loss",
    "normalised_entropy",
]
