"""Post-local SGD: replicas that drift apart between averages of their parameters."""

from gradmesh.trainer.ddp.model_averaging.averager import ModelAverager as ModelAverager
from gradmesh.trainer.ddp.model_averaging.averager import (
    PeriodicModelAverager as PeriodicModelAverager,
)
from gradmesh.trainer.ddp.model_averaging.hierarchical import (
    HierarchicalModelAverager as HierarchicalModelAverager,
)
from gradmesh.trainer.ddp.model_averaging.optimizer import (
    PostLocalSGDOptimizer as PostLocalSGDOptimizer,
)

__all__ = [
    "HierarchicalModelAverager",
    "ModelAverager",
    "PeriodicModelAverager",
    "PostLocalSGDOptimizer",
]
