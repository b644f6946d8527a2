"""Learning-rate schedules, under torch's names."""

from gradmesh.engine.optim.lr_scheduler.cyclic import CyclicLR as CyclicLR
from gradmesh.engine.optim.lr_scheduler.cyclic import OneCycleLR as OneCycleLR
from gradmesh.engine.optim.lr_scheduler.plateau import ReduceLROnPlateau as ReduceLROnPlateau
from gradmesh.engine.optim.lr_scheduler.scheduler import LRScheduler as LRScheduler
from gradmesh.engine.optim.lr_scheduler.shapes import ConstantLR as ConstantLR
from gradmesh.engine.optim.lr_scheduler.shapes import CosineAnnealingLR as CosineAnnealingLR
from gradmesh.engine.optim.lr_scheduler.shapes import ExponentialLR as ExponentialLR
from gradmesh.engine.optim.lr_scheduler.shapes import LambdaLR as LambdaLR
from gradmesh.engine.optim.lr_scheduler.shapes import LinearLR as LinearLR
from gradmesh.engine.optim.lr_scheduler.shapes import MultiStepLR as MultiStepLR
from gradmesh.engine.optim.lr_scheduler.shapes import SequentialLR as SequentialLR
from gradmesh.engine.optim.lr_scheduler.shapes import StepLR as StepLR

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
