"""Learning-rate schedules, under torch's names; `optim.lr_scheduler` is this module."""

from gradmesh.engine.optim.schedule.cyclic import CyclicLR as CyclicLR
from gradmesh.engine.optim.schedule.one_cycle import OneCycleLR as OneCycleLR
from gradmesh.engine.optim.schedule.plateau import ReduceLROnPlateau as ReduceLROnPlateau
from gradmesh.engine.optim.schedule.scheduler import LRScheduler as LRScheduler
from gradmesh.engine.optim.schedule.shapes import ConstantLR as ConstantLR
from gradmesh.engine.optim.schedule.shapes import CosineAnnealingLR as CosineAnnealingLR
from gradmesh.engine.optim.schedule.shapes import ExponentialLR as ExponentialLR
from gradmesh.engine.optim.schedule.shapes import LambdaLR as LambdaLR
from gradmesh.engine.optim.schedule.shapes import LinearLR as LinearLR
from gradmesh.engine.optim.schedule.shapes import MultiStepLR as MultiStepLR
from gradmesh.engine.optim.schedule.shapes import SequentialLR as SequentialLR
from gradmesh.engine.optim.schedule.shapes import StepLR as StepLR

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
