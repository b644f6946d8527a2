"""Optimizers of parameters that live on several workers."""

from gradmesh.sdk.optim.distributed import DistributedOptimizer as DistributedOptimizer

__all__ = ["DistributedOptimizer"]
