"""Optimizers, local ones and DistributedOptimizer for parameters of several workers."""

# A star import, so that the engine's list of names is not duplicated.
from gradmesh.engine.optim import *  # noqa: F403
from gradmesh.engine.optim import __all__ as _engine
from gradmesh.sdk.optim import DistributedOptimizer as DistributedOptimizer

__all__ = [*_engine, "DistributedOptimizer"]
