"""How good a click model is: exact AUC, log loss, normalised entropy, calibration."""

from gradmesh.trainer.metric.auc import auc as auc
from gradmesh.trainer.metric.calibration import calibration as calibration
from gradmesh.trainer.metric.entropy import log_loss as log_loss
from gradmesh.trainer.metric.entropy import normalised_entropy as normalised_entropy

__all__ = ["auc", "calibration", "log_loss", "normalised_entropy"]
