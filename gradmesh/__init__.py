"""Hybrid-parallel training of embedding-heavy models as a cluster of gRPC services.

This is the public API; the packages behind it are private. Names load on first use, so that
`gradmesh --help` does not wait for a maths library.
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
    from gradmesh.engine.autograd import enable_grad as enable_grad
    from gradmesh.engine.autograd import is_grad_enabled as is_grad_enabled
    from gradmesh.engine.autograd import no_grad as no_grad
    from gradmesh.engine.autograd import set_grad_enabled as set_grad_enabled
    from gradmesh.engine.autograd.creation import arange as arange
    from gradmesh.engine.autograd.creation import as_tensor as as_tensor
    from gradmesh.engine.autograd.creation import empty as empty
    from gradmesh.engine.autograd.creation import from_numpy as from_numpy
    from gradmesh.engine.autograd.creation import full as full
    from gradmesh.engine.autograd.creation import ones as ones
    from gradmesh.engine.autograd.creation import ones_like as ones_like
    from gradmesh.engine.autograd.creation import rand as rand
    from gradmesh.engine.autograd.creation import randint as randint
    from gradmesh.engine.autograd.creation import randn as randn
    from gradmesh.engine.autograd.creation import tensor as tensor
    from gradmesh.engine.autograd.creation import zeros as zeros
    from gradmesh.engine.autograd.creation import zeros_like as zeros_like
    from gradmesh.engine.autograd.ops import abs as abs
    from gradmesh.engine.autograd.ops import argsort as argsort
    from gradmesh.engine.autograd.ops import bitwise_and as bitwise_and
    from gradmesh.engine.autograd.ops import bitwise_not as bitwise_not
    from gradmesh.engine.autograd.ops import bitwise_or as bitwise_or
    from gradmesh.engine.autograd.ops import bitwise_xor as bitwise_xor
    from gradmesh.engine.autograd.ops import cat as cat
    from gradmesh.engine.autograd.ops import chunk as chunk
    from gradmesh.engine.autograd.ops import clamp as clamp
    from gradmesh.engine.autograd.ops import cos as cos
    from gradmesh.engine.autograd.ops import cumsum as cumsum
    from gradmesh.engine.autograd.ops import erf as erf
    from gradmesh.engine.autograd.ops import exp as exp
    from gradmesh.engine.autograd.ops import flip as flip
    from gradmesh.engine.autograd.ops import floor_divide as floor_divide
    from gradmesh.engine.autograd.ops import gather as gather
    from gradmesh.engine.autograd.ops import log as log
    from gradmesh.engine.autograd.ops import log1p as log1p
    from gradmesh.engine.autograd.ops import log_softmax as log_softmax
    from gradmesh.engine.autograd.ops import logical_and as logical_and
    from gradmesh.engine.autograd.ops import logical_not as logical_not
    from gradmesh.engine.autograd.ops import logical_or as logical_or
    from gradmesh.engine.autograd.ops import logical_xor as logical_xor
    from gradmesh.engine.autograd.ops import logsumexp as logsumexp
    from gradmesh.engine.autograd.ops import masked_fill as masked_fill
    from gradmesh.engine.autograd.ops import masked_select as masked_select
    from gradmesh.engine.autograd.ops import max as max
    from gradmesh.engine.autograd.ops import maximum as maximum
    from gradmesh.engine.autograd.ops import mean as mean
    from gradmesh.engine.autograd.ops import min as min
    from gradmesh.engine.autograd.ops import minimum as minimum
    from gradmesh.engine.autograd.ops import permute as permute
    from gradmesh.engine.autograd.ops import pow as pow
    from gradmesh.engine.autograd.ops import prod as prod
    from gradmesh.engine.autograd.ops import relu as relu
    from gradmesh.engine.autograd.ops import remainder as remainder
    from gradmesh.engine.autograd.ops import reshape as reshape
    from gradmesh.engine.autograd.ops import scatter_add as scatter_add
    from gradmesh.engine.autograd.ops import sigmoid as sigmoid
    from gradmesh.engine.autograd.ops import sin as sin
    from gradmesh.engine.autograd.ops import sort as sort
    from gradmesh.engine.autograd.ops import split as split
    from gradmesh.engine.autograd.ops import sqrt as sqrt
    from gradmesh.engine.autograd.ops import squeeze as squeeze
    from gradmesh.engine.autograd.ops import stack as stack
    from gradmesh.engine.autograd.ops import std as std
    from gradmesh.engine.autograd.ops import sum as sum
    from gradmesh.engine.autograd.ops import tanh as tanh
    from gradmesh.engine.autograd.ops import tile as tile
    from gradmesh.engine.autograd.ops import topk as topk
    from gradmesh.engine.autograd.ops import transpose as transpose
    from gradmesh.engine.autograd.ops import unbind as unbind
    from gradmesh.engine.autograd.ops import unsqueeze as unsqueeze
    from gradmesh.engine.autograd.ops import var as var
    from gradmesh.engine.autograd.ops import where as where
    from gradmesh.engine.autograd.ops.einsum import einsum as einsum
    from gradmesh.engine.autograd.ops.linear import matmul as matmul
    from gradmesh.engine.autograd.ops.softmax import softmax as softmax
    from gradmesh.engine.autograd.ops.vector_norm import norm as norm
    from gradmesh.engine.backend.dtype import bfloat16 as bfloat16
    from gradmesh.engine.backend.dtype import float16 as float16
    from gradmesh.engine.backend.dtype import float32 as float32
    from gradmesh.engine.backend.dtype import float64 as float64
    from gradmesh.engine.backend.dtype import int8 as int8
    from gradmesh.engine.backend.dtype import int16 as int16
    from gradmesh.engine.backend.dtype import int32 as int32
    from gradmesh.engine.backend.dtype import int64 as int64
    from gradmesh.engine.backend.dtype import uint8 as uint8
    from gradmesh.engine.backend.random import manual_seed as manual_seed
    from gradmesh.launch.local import LocalCluster as LocalCluster
    from gradmesh.launch.training import train as train
    from gradmesh.protos import errors as errors
    from gradmesh.sdk.future import Future as Future
    from gradmesh.sdk.mesh.connect import connect as connect
    from gradmesh.sdk.mesh.data_shards import DataShards as DataShards
    from gradmesh.sdk.mesh.mesh import Mesh as Mesh
    from gradmesh.sdk.process.network import SecurityConfig as SecurityConfig
    from gradmesh.sdk.rpc.api import remote as remote
    from gradmesh.sdk.rpc.api import rpc_async as rpc_async
    from gradmesh.sdk.rpc.api import rpc_sync as rpc_sync
    from gradmesh.sdk.rpc.registry import async_execution as async_execution
    from gradmesh.sdk.rpc.registry import remote_exception as remote_exception
    from gradmesh.sdk.rpc.rref.rref import RRef as RRef
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
    "abs",
    "arange",
    "argsort",
    "as_tensor",
    "async_execution",
    "autograd",
    "bfloat16",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cat",
    "chunk",
    "clamp",
    "connect",
    "cos",
    "cumsum",
    "ddp",
    "einsum",
    "empty",
    "enable_grad",
    "erf",
    "errors",
    "exp",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor_divide",
    "from_numpy",
    "full",
    "futures",
    "gather",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "manual_seed",
    "masked_fill",
    "masked_select",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "nn",
    "no_grad",
    "norm",
    "ones",
    "ones_like",
    "optim",
    "permute",
    "pow",
    "process_group",
    "prod",
    "rand",
    "randint",
    "randn",
    "relu",
    "remainder",
    "remote",
    "remote_exception",
    "reshape",
    "rpc",
    "rpc_async",
    "rpc_sync",
    "scatter_add",
    "set_grad_enabled",
    "sigmoid",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "std",
    "sum",
    "tanh",
    "tensor",
    "tile",
    "topk",
    "train",
    "transpose",
    "uint8",
    "unbind",
    "unsqueeze",
    "var",
    "where",
    "zeros",
    "zeros_like",
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
    "RRef": "gradmesh.sdk.rpc.rref.rref",
    "SecurityConfig": "gradmesh.sdk.process.network",
    "SyncBatchNorm": "gradmesh.trainer.ddp",
    "Table": "gradmesh.sdk.table.table",
    "TableReader": "gradmesh.sdk.serving",
    "async_execution": "gradmesh.sdk.rpc.registry",
    "connect": "gradmesh.sdk.mesh.connect",
    "remote": "gradmesh.sdk.rpc.api",
    "remote_exception": "gradmesh.sdk.rpc.registry",
    "rpc_async": "gradmesh.sdk.rpc.api",
    "rpc_sync": "gradmesh.sdk.rpc.api",
    "train": "gradmesh.launch.training",
}

# What torch users find in `torch` itself, by the module it comes from.
_MATHS = {
    "gradmesh.engine.autograd": """
        Tensor enable_grad is_grad_enabled no_grad set_grad_enabled
    """,
    "gradmesh.engine.autograd.creation": """
        arange as_tensor empty from_numpy full ones ones_like rand randint randn tensor zeros
        zeros_like
    """,
    "gradmesh.engine.autograd.ops": """
        abs argsort bitwise_and bitwise_not bitwise_or bitwise_xor cat chunk clamp cos cumsum einsum
        erf exp flip floor_divide gather log log1p log_softmax logical_and logical_not logical_or
        logical_xor logsumexp masked_fill masked_select matmul max maximum mean min minimum norm
        permute pow prod relu remainder reshape scatter_add sigmoid sin softmax sort split sqrt
        squeeze stack std sum tanh tile topk transpose unbind unsqueeze var where
    """,
    "gradmesh.engine.backend.dtype": """
        bfloat16 float16 float32 float64 int16 int32 int64 int8 uint8
    """,
    "gradmesh.engine.backend.random": "manual_seed",
}
_HOMES.update({name: home for home, names in _MATHS.items() for name in names.split()})


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
