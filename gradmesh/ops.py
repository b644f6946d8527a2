"""Functions of tensors, by torch's names. Layers and losses are in gm.nn.functional."""

from gradmesh.engine.autograd.creation import as_tensor as as_tensor
from gradmesh.engine.autograd.creation import ones_like as ones_like
from gradmesh.engine.autograd.creation import randint as randint
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
from gradmesh.engine.autograd.ops import einsum as einsum
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
from gradmesh.engine.autograd.ops import matmul as matmul
from gradmesh.engine.autograd.ops import max as max
from gradmesh.engine.autograd.ops import maximum as maximum
from gradmesh.engine.autograd.ops import mean as mean
from gradmesh.engine.autograd.ops import min as min
from gradmesh.engine.autograd.ops import minimum as minimum
from gradmesh.engine.autograd.ops import norm as norm
from gradmesh.engine.autograd.ops import permute as permute
from gradmesh.engine.autograd.ops import pow as pow
from gradmesh.engine.autograd.ops import prod as prod
from gradmesh.engine.autograd.ops import relu as relu
from gradmesh.engine.autograd.ops import remainder as remainder
from gradmesh.engine.autograd.ops import reshape as reshape
from gradmesh.engine.autograd.ops import scatter_add as scatter_add
from gradmesh.engine.autograd.ops import sigmoid as sigmoid
from gradmesh.engine.autograd.ops import sin as sin
from gradmesh.engine.autograd.ops import softmax as softmax
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

__all__ = [
    "abs",
    "argsort",
    "as_tensor",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cat",
    "chunk",
    "clamp",
    "cos",
    "cumsum",
    "einsum",
    "erf",
    "exp",
    "flip",
    "floor_divide",
    "gather",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "masked_fill",
    "masked_select",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "norm",
    "ones_like",
    "permute",
    "pow",
    "prod",
    "randint",
    "relu",
    "remainder",
    "reshape",
    "scatter_add",
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
    "tile",
    "topk",
    "transpose",
    "unbind",
    "unsqueeze",
    "var",
    "where",
    "zeros_like",
]
