"""Optimizers: the engine's, and the one over parameters of several workers."""

# Starred, because the engine's own list would otherwise be kept twice.
from gradmesh.engine.optim import *  # noqa: F403
from gradmesh.engine.optim import __all__ as _engine
from gradmesh.sdk.optim import DistributedOptimizer as DistributedOptimizer

__all__ = [*_engine, "DistributedOptimizer"]
