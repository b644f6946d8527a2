"""Hybrid-parallel training of embedding-heavy models as a cluster of gRPC services.

This is the public API; docs/api.md lists it, and the packages behind it are private. Names load on
first use, so that `gradmesh --help` does not wait for a maths library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradmesh.protos.version import VERSION

if TYPE_CHECKING:
    from gradmesh import autograd as autograd
    from gradmesh import errors as errors
    from gradmesh import futures as futures
    from gradmesh import nn as nn
    from gradmesh import ops as ops
    from gradmesh import optim as optim
    from gradmesh import rpc as rpc
    from gradmesh.engine.autograd import Tensor as Tensor
    from gradmesh.engine.autograd import no_grad as no_grad
    from gradmesh.engine.autograd.creation import arange as arange
    from gradmesh.engine.autograd.creation import empty as empty
    from gradmesh.engine.autograd.creation import from_numpy as from_numpy
    from gradmesh.engine.autograd.creation import full as full
    from gradmesh.engine.autograd.creation import ones as ones
    from gradmesh.engine.autograd.creation import rand as rand
    from gradmesh.engine.autograd.creation import randn as randn
    from gradmesh.engine.autograd.creation import tensor as tensor
    from gradmesh.engine.autograd.creation import zeros as zeros
    from gradmesh.engine.backend.dtype import bfloat16 as bfloat16
    from gradmesh.engine.backend.dtype import float16 as float16
    from gradmesh.engine.backend.dtype import float32 as float32
    from gradmesh.engine.backend.dtype import float64 as float64
    from gradmesh.engine.backend.dtype import int64 as int64
    from gradmesh.engine.backend.random import manual_seed as manual_seed
    from gradmesh.launch.local import LocalCluster as LocalCluster
    from gradmesh.launch.training import train as train
    from gradmesh.sdk.future import Future as Future
    from gradmesh.sdk.mesh.connect import connect as connect
    from gradmesh.sdk.mesh.data_shards import DataShards as DataShards
    from gradmesh.sdk.mesh.mesh import Mesh as Mesh
    from gradmesh.sdk.optim.full_step import step as step
    from gradmesh.sdk.process.network import SecurityConfig as SecurityConfig
    from gradmesh.sdk.rpc.api import remote as remote
    from gradmesh.sdk.rpc.api import rpc_async as rpc_async
    from gradmesh.sdk.rpc.api import rpc_sync as rpc_sync
    from gradmesh.sdk.rpc.rref.rref import RRef as RRef
    from gradmesh.sdk.serving import TableReader as TableReader
    from gradmesh.sdk.table.gradients import BadGradients as BadGradients
    from gradmesh.sdk.table.lifetime import Admission as Admission
    from gradmesh.sdk.table.lifetime import Eviction as Eviction
    from gradmesh.sdk.table.recipe import Initializer as Initializer
    from gradmesh.sdk.table.table import Table as Table
    from gradmesh.sdk.transport.policy import Limits as Limits
    from gradmesh.sdk.transport.policy import RetryPolicy as RetryPolicy
    from gradmesh.sdk.transport.policy import Timeouts as Timeouts
    from gradmesh.trainer import ddp as ddp
    from gradmesh.trainer import process_group as process_group
    from gradmesh.trainer.ddp import DDP as DDP
    from gradmesh.trainer.ddp import SyncBatchNorm as SyncBatchNorm

__version__ = VERSION

__all__ = [
    "DDP",
    "Admission",
    "BadGradients",
    "DataShards",
    "Eviction",
    "Future",
    "Initializer",
    "Limits",
    "LocalCluster",
    "Mesh",
    "RRef",
    "RetryPolicy",
    "SecurityConfig",
    "SyncBatchNorm",
    "Table",
    "TableReader",
    "Tensor",
    "Timeouts",
    "arange",
    "autograd",
    "bfloat16",
    "connect",
    "ddp",
    "empty",
    "errors",
    "float16",
    "float32",
    "float64",
    "from_numpy",
    "full",
    "futures",
    "int64",
    "manual_seed",
    "nn",
    "no_grad",
    "ones",
    "ops",
    "optim",
    "process_group",
    "rand",
    "randn",
    "remote",
    "rpc",
    "rpc_async",
    "rpc_sync",
    "step",
    "tensor",
    "train",
    "zeros",
]

_MODULES = {
    "autograd": "gradmesh.autograd",
    "ddp": "gradmesh.trainer.ddp",
    "errors": "gradmesh.errors",
    "futures": "gradmesh.futures",
    "nn": "gradmesh.nn",
    "ops": "gradmesh.ops",
    "optim": "gradmesh.optim",
    "process_group": "gradmesh.trainer.process_group",
    "rpc": "gradmesh.rpc",
}

# Where each name is defined.
_HOMES = {
    name: home
    for home, names in {
        "gradmesh.engine.autograd": "Tensor no_grad",
        "gradmesh.engine.autograd.creation": (
            "arange empty from_numpy full ones rand randn tensor zeros"
        ),
        "gradmesh.engine.backend.dtype": "bfloat16 float16 float32 float64 int64",
        "gradmesh.engine.backend.random": "manual_seed",
        "gradmesh.launch.local": "LocalCluster",
        "gradmesh.launch.training": "train",
        "gradmesh.sdk.future": "Future",
        "gradmesh.sdk.mesh.connect": "connect",
        "gradmesh.sdk.mesh.data_shards": "DataShards",
        "gradmesh.sdk.mesh.mesh": "Mesh",
        "gradmesh.sdk.process.network": "SecurityConfig",
        "gradmesh.sdk.optim.full_step": "step",
        "gradmesh.sdk.rpc.api": "remote rpc_async rpc_sync",
        "gradmesh.sdk.rpc.rref.rref": "RRef",
        "gradmesh.sdk.serving": "TableReader",
        "gradmesh.sdk.table.gradients": "BadGradients",
        "gradmesh.sdk.table.lifetime": "Admission Eviction",
        "gradmesh.sdk.table.recipe": "Initializer",
        "gradmesh.sdk.table.table": "Table",
        "gradmesh.sdk.transport.policy": "Limits RetryPolicy Timeouts",
        "gradmesh.trainer.ddp": "DDP SyncBatchNorm",
    }.items()
    for name in names.split()
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
