"""Hybrid-parallel training of embedding-heavy models as a cluster of gRPC services.

This is the door: what users need is here, the rooms behind it are private. Names load on first use,
so that `gradmesh --help` does not wait for a maths library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradmesh.protos.version import VERSION

if TYPE_CHECKING:
    from gradmesh import autograd as autograd
    from gradmesh import futures as futures
    from gradmesh import nn as nn
    from gradmesh import optim as optim
    from gradmesh import rpc as rpc
    from gradmesh.engine.autograd import Tensor as Tensor
    from gradmesh.engine.autograd import no_grad as no_grad
    from gradmesh.engine.autograd.creation import tensor as tensor
    from gradmesh.launch.local import LocalCluster as LocalCluster
    from gradmesh.launch.training import train as train
    from gradmesh.protos import errors as errors
    from gradmesh.sdk.future import Future as Future
    from gradmesh.sdk.mesh.connect import connect as connect
    from gradmesh.sdk.mesh.data_shards import DataShards as DataShards
    from gradmesh.sdk.mesh.mesh import Mesh as Mesh
    from gradmesh.sdk.owner.registry import async_execution as async_execution
    from gradmesh.sdk.owner.registry import remote_exception as remote_exception
    from gradmesh.sdk.process.security import SecurityConfig as SecurityConfig
    from gradmesh.sdk.rpc.api import remote as remote
    from gradmesh.sdk.rpc.api import rpc_async as rpc_async
    from gradmesh.sdk.rpc.api import rpc_sync as rpc_sync
    from gradmesh.sdk.rref.rref import RRef as RRef
    from gradmesh.sdk.serving import TableReader as TableReader
    from gradmesh.sdk.table.gradients import BadGradients as BadGradients
    from gradmesh.sdk.table.lifetime import Admission as Admission
    from gradmesh.sdk.table.lifetime import Eviction as Eviction
    from gradmesh.sdk.table.recipe import Initializer as Initializer
    from gradmesh.sdk.table.table import Table as Table
    from gradmesh.trainer import ddp as ddp
    from gradmesh.trainer import process_group as process_group
    from gradmesh.trainer.ddp import DDP as DDP
    from gradmesh.trainer.ddp import DistributedDataParallel as DistributedDataParallel
    from gradmesh.trainer.ddp import SyncBatchNorm as SyncBatchNorm

__version__ = VERSION

__all__ = [
    "DDP",
    "Admission",
    "BadGradients",
    "DataShards",
    "DistributedDataParallel",
    "Eviction",
    "Future",
    "Initializer",
    "LocalCluster",
    "Mesh",
    "RRef",
    "SecurityConfig",
    "SyncBatchNorm",
    "Table",
    "TableReader",
    "Tensor",
    "async_execution",
    "autograd",
    "connect",
    "ddp",
    "errors",
    "futures",
    "nn",
    "no_grad",
    "optim",
    "process_group",
    "remote",
    "remote_exception",
    "rpc",
    "rpc_async",
    "rpc_sync",
    "tensor",
    "train",
]

_MODULES = {
    "autograd": "gradmesh.autograd",
    "ddp": "gradmesh.trainer.ddp",
    "errors": "gradmesh.protos.errors",
    "futures": "gradmesh.futures",
    "nn": "gradmesh.nn",
    "optim": "gradmesh.optim",
    "process_group": "gradmesh.trainer.process_group",
    "rpc": "gradmesh.rpc",
}

_HOMES = {
    "Admission": "gradmesh.sdk.table.lifetime",
    "BadGradients": "gradmesh.sdk.table.gradients",
    "DDP": "gradmesh.trainer.ddp",
    "DataShards": "gradmesh.sdk.mesh.data_shards",
    "DistributedDataParallel": "gradmesh.trainer.ddp",
    "Eviction": "gradmesh.sdk.table.lifetime",
    "Future": "gradmesh.sdk.future",
    "Initializer": "gradmesh.sdk.table.recipe",
    "LocalCluster": "gradmesh.launch.local",
    "Mesh": "gradmesh.sdk.mesh.mesh",
    "RRef": "gradmesh.sdk.rref.rref",
    "SecurityConfig": "gradmesh.sdk.process.security",
    "SyncBatchNorm": "gradmesh.trainer.ddp",
    "Table": "gradmesh.sdk.table.table",
    "TableReader": "gradmesh.sdk.serving",
    "Tensor": "gradmesh.engine.autograd",
    "async_execution": "gradmesh.sdk.owner.registry",
    "connect": "gradmesh.sdk.mesh.connect",
    "no_grad": "gradmesh.engine.autograd",
    "remote": "gradmesh.sdk.rpc.api",
    "remote_exception": "gradmesh.sdk.owner.registry",
    "rpc_async": "gradmesh.sdk.rpc.api",
    "rpc_sync": "gradmesh.sdk.rpc.api",
    "tensor": "gradmesh.engine.autograd.creation",
    "train": "gradmesh.launch.training",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'gradmesh' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
