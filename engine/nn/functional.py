"""The functions behind the modules, under torch's names."""

from gradmesh.engine.autograd.ops import adaptive_avg_pool2d as adaptive_avg_pool2d
from gradmesh.engine.autograd.ops import avg_pool2d as avg_pool2d
from gradmesh.engine.autograd.ops import batch_norm as batch_norm
from gradmesh.engine.autograd.ops import (
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
)
from gradmesh.engine.autograd.ops import conv1d as conv1d
from gradmesh.engine.autograd.ops import conv2d as conv2d
from gradmesh.engine.autograd.ops import cross_entropy as cross_entropy
from gradmesh.engine.autograd.ops import cross_layer as cross_layer
from gradmesh.engine.autograd.ops import dot_interaction as dot_interaction
from gradmesh.engine.autograd.ops import dropout as dropout
from gradmesh.engine.autograd.ops import embedding as embedding
from gradmesh.engine.autograd.ops import embedding_bag as embedding_bag
from gradmesh.engine.autograd.ops import factorization_machine as factorization_machine
from gradmesh.engine.autograd.ops import gelu as gelu
from gradmesh.engine.autograd.ops import group_norm as group_norm
from gradmesh.engine.autograd.ops import huber_loss as huber_loss
from gradmesh.engine.autograd.ops import l1_loss as l1_loss
from gradmesh.engine.autograd.ops import layer_norm as layer_norm
from gradmesh.engine.autograd.ops import leaky_relu as leaky_relu
from gradmesh.engine.autograd.ops import linear as linear
from gradmesh.engine.autograd.ops import linear_relu as linear_relu
from gradmesh.engine.autograd.ops import log_softmax as log_softmax
from gradmesh.engine.autograd.ops import max_pool2d as max_pool2d
from gradmesh.engine.autograd.ops import mse_loss as mse_loss
from gradmesh.engine.autograd.ops import nll_loss as nll_loss
from gradmesh.engine.autograd.ops import relu as relu
from gradmesh.engine.autograd.ops import sigmoid as sigmoid
from gradmesh.engine.autograd.ops import silu as silu
from gradmesh.engine.autograd.ops import smooth_l1_loss as smooth_l1_loss
from gradmesh.engine.autograd.ops import softmax as softmax
from gradmesh.engine.autograd.ops import softplus as softplus
from gradmesh.engine.autograd.ops import take_rows as take_rows
from gradmesh.engine.autograd.ops import tanh as tanh

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "cross_entropy",
    "cross_layer",
    "dot_interaction",
    "dropout",
    "embedding",
    "embedding_bag",
    "factorization_machine",
    "gelu",
    "group_norm",
    "huber_loss",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_relu",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "relu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "take_rows",
    "tanh",
]
