"""Data parallelism: a module whose replicas on all ranks stay equal. See docs/ddp.md."""

from gradmesh.trainer.ddp import comm_hooks as comm_hooks
from gradmesh.trainer.ddp.all_reduce import all_reduce_rows as all_reduce_rows
from gradmesh.trainer.ddp.comm_hook import CommFuture as Future
from gradmesh.trainer.ddp.comm_hook import GradBucket as GradBucket
from gradmesh.trainer.ddp.construction import (
    set_params_and_buffers_to_ignore as set_params_and_buffers_to_ignore,
)
from gradmesh.trainer.ddp.ddp import DistributedDataParallel as DistributedDataParallel
from gradmesh.trainer.ddp.join import Join as Join
from gradmesh.trainer.ddp.join import Joinable as Joinable
from gradmesh.trainer.ddp.join import JoinHook as JoinHook
from gradmesh.trainer.ddp.mixed_precision import MixedPrecision as MixedPrecision
from gradmesh.trainer.ddp.model_averaging import (
    HierarchicalModelAverager as HierarchicalModelAverager,
)
from gradmesh.trainer.ddp.model_averaging import ModelAverager as ModelAverager
from gradmesh.trainer.ddp.model_averaging import PeriodicModelAverager as PeriodicModelAverager
from gradmesh.trainer.ddp.model_averaging import PostLocalSGDOptimizer as PostLocalSGDOptimizer
from gradmesh.trainer.ddp.reduction_hooks import (
    apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from gradmesh.trainer.ddp.reduction_hooks import in_backward_optimizers as in_backward_optimizers
from gradmesh.trainer.ddp.state_sync import BufferHookLocation as BufferHookLocation
from gradmesh.trainer.ddp.sync_batch_norm import SyncBatchNorm as SyncBatchNorm

DDP = DistributedDataParallel

__all__ = [
    "DDP",
    "BufferHookLocation",
    "DistributedDataParallel",
    "Future",
    "GradBucket",
    "HierarchicalModelAverager",
    "Join",
    "JoinHook",
    "Joinable",
    "MixedPrecision",
    "ModelAverager",
    "PeriodicModelAverager",
    "PostLocalSGDOptimizer",
    "SyncBatchNorm",
    "all_reduce_rows",
    "apply_optimizer_in_backward",
    "comm_hooks",
    "in_backward_optimizers",
    "set_params_and_buffers_to_ignore",
]
