"""The ops, one family per file; the lower-case functions are the public ones."""

from gradmesh.engine.autograd.ops.activation import dropout as dropout
from gradmesh.engine.autograd.ops.activation import gelu as gelu
from gradmesh.engine.autograd.ops.activation import leaky_relu as leaky_relu
from gradmesh.engine.autograd.ops.activation import relu as relu
from gradmesh.engine.autograd.ops.activation import sigmoid as sigmoid
from gradmesh.engine.autograd.ops.activation import silu as silu
from gradmesh.engine.autograd.ops.activation import tanh as tanh
from gradmesh.engine.autograd.ops.arithmetic import add as add
from gradmesh.engine.autograd.ops.arithmetic import div as div
from gradmesh.engine.autograd.ops.arithmetic import floor_divide as floor_divide
from gradmesh.engine.autograd.ops.arithmetic import maximum as maximum
from gradmesh.engine.autograd.ops.arithmetic import minimum as minimum
from gradmesh.engine.autograd.ops.arithmetic import mul as mul
from gradmesh.engine.autograd.ops.arithmetic import neg as neg
from gradmesh.engine.autograd.ops.arithmetic import pow as pow
from gradmesh.engine.autograd.ops.arithmetic import remainder as remainder
from gradmesh.engine.autograd.ops.arithmetic import sub as sub
from gradmesh.engine.autograd.ops.arithmetic import where as where
from gradmesh.engine.autograd.ops.classification_loss import cross_entropy as cross_entropy
from gradmesh.engine.autograd.ops.classification_loss import nll_loss as nll_loss
from gradmesh.engine.autograd.ops.conv import conv1d as conv1d
from gradmesh.engine.autograd.ops.conv import conv2d as conv2d
from gradmesh.engine.autograd.ops.einsum import einsum as einsum
from gradmesh.engine.autograd.ops.embedding import embedding as embedding
from gradmesh.engine.autograd.ops.embedding import embedding_bag as embedding_bag
from gradmesh.engine.autograd.ops.embedding import take_rows as take_rows
from gradmesh.engine.autograd.ops.indexing import cat as cat
from gradmesh.engine.autograd.ops.indexing import getitem as getitem
from gradmesh.engine.autograd.ops.indexing import split as split
from gradmesh.engine.autograd.ops.indexing import stack as stack
from gradmesh.engine.autograd.ops.interaction import cross_layer as cross_layer
from gradmesh.engine.autograd.ops.interaction import dot_interaction as dot_interaction
from gradmesh.engine.autograd.ops.interaction import factorization_machine as factorization_machine
from gradmesh.engine.autograd.ops.linear import linear as linear
from gradmesh.engine.autograd.ops.linear import linear_relu as linear_relu
from gradmesh.engine.autograd.ops.linear import matmul as matmul
from gradmesh.engine.autograd.ops.logic import bitwise_and as bitwise_and
from gradmesh.engine.autograd.ops.logic import bitwise_not as bitwise_not
from gradmesh.engine.autograd.ops.logic import bitwise_or as bitwise_or
from gradmesh.engine.autograd.ops.logic import bitwise_xor as bitwise_xor
from gradmesh.engine.autograd.ops.logic import logical_and as logical_and
from gradmesh.engine.autograd.ops.logic import logical_not as logical_not
from gradmesh.engine.autograd.ops.logic import logical_or as logical_or
from gradmesh.engine.autograd.ops.logic import logical_xor as logical_xor
from gradmesh.engine.autograd.ops.loss import (
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
)
from gradmesh.engine.autograd.ops.loss import huber_loss as huber_loss
from gradmesh.engine.autograd.ops.loss import l1_loss as l1_loss
from gradmesh.engine.autograd.ops.loss import mse_loss as mse_loss
from gradmesh.engine.autograd.ops.loss import smooth_l1_loss as smooth_l1_loss
from gradmesh.engine.autograd.ops.norm import batch_norm as batch_norm
from gradmesh.engine.autograd.ops.norm import group_norm as group_norm
from gradmesh.engine.autograd.ops.norm import layer_norm as layer_norm
from gradmesh.engine.autograd.ops.ordering import argsort as argsort
from gradmesh.engine.autograd.ops.ordering import sort as sort
from gradmesh.engine.autograd.ops.ordering import topk as topk
from gradmesh.engine.autograd.ops.pointwise import abs as abs
from gradmesh.engine.autograd.ops.pointwise import clamp as clamp
from gradmesh.engine.autograd.ops.pointwise import cos as cos
from gradmesh.engine.autograd.ops.pointwise import erf as erf
from gradmesh.engine.autograd.ops.pointwise import exp as exp
from gradmesh.engine.autograd.ops.pointwise import log as log
from gradmesh.engine.autograd.ops.pointwise import log1p as log1p
from gradmesh.engine.autograd.ops.pointwise import sin as sin
from gradmesh.engine.autograd.ops.pointwise import sqrt as sqrt
from gradmesh.engine.autograd.ops.pool import adaptive_avg_pool2d as adaptive_avg_pool2d
from gradmesh.engine.autograd.ops.pool import avg_pool2d as avg_pool2d
from gradmesh.engine.autograd.ops.pool import max_pool2d as max_pool2d
from gradmesh.engine.autograd.ops.reduction import cumsum as cumsum
from gradmesh.engine.autograd.ops.reduction import max as max
from gradmesh.engine.autograd.ops.reduction import mean as mean
from gradmesh.engine.autograd.ops.reduction import min as min
from gradmesh.engine.autograd.ops.reduction import prod as prod
from gradmesh.engine.autograd.ops.reduction import std as std
from gradmesh.engine.autograd.ops.reduction import sum as sum
from gradmesh.engine.autograd.ops.reduction import var as var
from gradmesh.engine.autograd.ops.selection import chunk as chunk
from gradmesh.engine.autograd.ops.selection import gather as gather
from gradmesh.engine.autograd.ops.selection import masked_fill as masked_fill
from gradmesh.engine.autograd.ops.selection import masked_select as masked_select
from gradmesh.engine.autograd.ops.selection import scatter_add as scatter_add
from gradmesh.engine.autograd.ops.selection import unbind as unbind
from gradmesh.engine.autograd.ops.shape import broadcast_to as broadcast_to
from gradmesh.engine.autograd.ops.shape import flip as flip
from gradmesh.engine.autograd.ops.shape import permute as permute
from gradmesh.engine.autograd.ops.shape import repeat as repeat
from gradmesh.engine.autograd.ops.shape import reshape as reshape
from gradmesh.engine.autograd.ops.shape import squeeze as squeeze
from gradmesh.engine.autograd.ops.shape import tile as tile
from gradmesh.engine.autograd.ops.shape import transpose as transpose
from gradmesh.engine.autograd.ops.shape import unsqueeze as unsqueeze
from gradmesh.engine.autograd.ops.softmax import log_softmax as log_softmax
from gradmesh.engine.autograd.ops.softmax import logsumexp as logsumexp
from gradmesh.engine.autograd.ops.softmax import softmax as softmax
from gradmesh.engine.autograd.ops.softplus import softplus as softplus
from gradmesh.engine.autograd.ops.vector_norm import norm as norm

__all__ = [
    "abs",
    "adaptive_avg_pool2d",
    "add",
    "argsort",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "cat",
    "chunk",
    "clamp",
    "conv1d",
    "conv2d",
    "cos",
    "cross_entropy",
    "cross_layer",
    "cumsum",
    "div",
    "dot_interaction",
    "dropout",
    "einsum",
    "embedding",
    "embedding_bag",
    "erf",
    "exp",
    "factorization_machine",
    "flip",
    "floor_divide",
    "gather",
    "gelu",
    "getitem",
    "group_norm",
    "huber_loss",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_relu",
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
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mse_loss",
    "mul",
    "neg",
    "nll_loss",
    "norm",
    "permute",
    "pow",
    "prod",
    "relu",
    "remainder",
    "repeat",
    "reshape",
    "scatter_add",
    "sigmoid",
    "silu",
    "sin",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "sort",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "take_rows",
    "tanh",
    "tile",
    "topk",
    "transpose",
    "unbind",
    "unsqueeze",
    "var",
    "where",
]
