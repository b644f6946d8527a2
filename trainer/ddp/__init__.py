"""Data parallelism of the dense part: equal parameters, averaged gradients."""

from gradmesh.trainer.ddp.reducer import Reducer as Reducer

__all__ = ["Reducer"]
