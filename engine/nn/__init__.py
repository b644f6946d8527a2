"""Layers, losses and initialisers, under torch's names."""

from gradmesh.engine.nn import functional as functional
from gradmesh.engine.nn import init as init
from gradmesh.engine.nn.activation import GELU as GELU
from gradmesh.engine.nn.activation import Identity as Identity
from gradmesh.engine.nn.activation import LogSoftmax as LogSoftmax
from gradmesh.engine.nn.activation import ReLU as ReLU
from gradmesh.engine.nn.activation import Sigmoid as Sigmoid
from gradmesh.engine.nn.activation import SiLU as SiLU
from gradmesh.engine.nn.activation import Softmax as Softmax
from gradmesh.engine.nn.activation import Tanh as Tanh
from gradmesh.engine.nn.clip import clip_grad_norm_ as clip_grad_norm_
from gradmesh.engine.nn.clip import clip_grad_value_ as clip_grad_value_
from gradmesh.engine.nn.container import ModuleDict as ModuleDict
from gradmesh.engine.nn.container import ModuleList as ModuleList
from gradmesh.engine.nn.container import Sequential as Sequential
from gradmesh.engine.nn.embedding import Embedding as Embedding
from gradmesh.engine.nn.embedding import EmbeddingBag as EmbeddingBag
from gradmesh.engine.nn.linear import MLP as MLP
from gradmesh.engine.nn.linear import Linear as Linear
from gradmesh.engine.nn.loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from gradmesh.engine.nn.loss import CrossEntropyLoss as CrossEntropyLoss
from gradmesh.engine.nn.loss import MSELoss as MSELoss
from gradmesh.engine.nn.loss import NLLLoss as NLLLoss
from gradmesh.engine.nn.module import LoadReport as LoadReport
from gradmesh.engine.nn.module import Module as Module
from gradmesh.engine.nn.parameter import Parameter as Parameter

__all__ = [
    "GELU",
    "MLP",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Embedding",
    "EmbeddingBag",
    "Identity",
    "Linear",
    "LoadReport",
    "LogSoftmax",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "clip_grad_norm_",
    "clip_grad_value_",
    "functional",
    "init",
]
