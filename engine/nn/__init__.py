"""Layers, losses and initialisers, under torch's names."""

from gradmesh.engine.nn import functional as functional
from gradmesh.engine.nn import init as init
from gradmesh.engine.nn.activation import GELU as GELU
from gradmesh.engine.nn.activation import Dropout as Dropout
from gradmesh.engine.nn.activation import Identity as Identity
from gradmesh.engine.nn.activation import LeakyReLU as LeakyReLU
from gradmesh.engine.nn.activation import LogSoftmax as LogSoftmax
from gradmesh.engine.nn.activation import ReLU as ReLU
from gradmesh.engine.nn.activation import Sigmoid as Sigmoid
from gradmesh.engine.nn.activation import SiLU as SiLU
from gradmesh.engine.nn.activation import Softmax as Softmax
from gradmesh.engine.nn.activation import Softplus as Softplus
from gradmesh.engine.nn.activation import Tanh as Tanh
from gradmesh.engine.nn.attention import MultiheadAttention as MultiheadAttention
from gradmesh.engine.nn.clip import clip_grad_norm_ as clip_grad_norm_
from gradmesh.engine.nn.clip import clip_grad_value_ as clip_grad_value_
from gradmesh.engine.nn.container import ModuleDict as ModuleDict
from gradmesh.engine.nn.container import ModuleList as ModuleList
from gradmesh.engine.nn.container import Sequential as Sequential
from gradmesh.engine.nn.conv import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from gradmesh.engine.nn.conv import AvgPool2d as AvgPool2d
from gradmesh.engine.nn.conv import Conv1d as Conv1d
from gradmesh.engine.nn.conv import Conv2d as Conv2d
from gradmesh.engine.nn.conv import Flatten as Flatten
from gradmesh.engine.nn.conv import MaxPool2d as MaxPool2d
from gradmesh.engine.nn.embedding import Embedding as Embedding
from gradmesh.engine.nn.embedding import EmbeddingBag as EmbeddingBag
from gradmesh.engine.nn.interaction import CrossNetwork as CrossNetwork
from gradmesh.engine.nn.interaction import DotInteraction as DotInteraction
from gradmesh.engine.nn.interaction import FactorizationMachine as FactorizationMachine
from gradmesh.engine.nn.linear import MLP as MLP
from gradmesh.engine.nn.linear import Linear as Linear
from gradmesh.engine.nn.loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from gradmesh.engine.nn.loss import CrossEntropyLoss as CrossEntropyLoss
from gradmesh.engine.nn.loss import HuberLoss as HuberLoss
from gradmesh.engine.nn.loss import L1Loss as L1Loss
from gradmesh.engine.nn.loss import MSELoss as MSELoss
from gradmesh.engine.nn.loss import NLLLoss as NLLLoss
from gradmesh.engine.nn.loss import SmoothL1Loss as SmoothL1Loss
from gradmesh.engine.nn.module import LoadReport as LoadReport
from gradmesh.engine.nn.module import Module as Module
from gradmesh.engine.nn.module import Parameter as Parameter
from gradmesh.engine.nn.norm import BatchNorm1d as BatchNorm1d
from gradmesh.engine.nn.norm import BatchNorm2d as BatchNorm2d
from gradmesh.engine.nn.norm import GroupNorm as GroupNorm
from gradmesh.engine.nn.norm import LayerNorm as LayerNorm

__all__ = [
    "GELU",
    "MLP",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "CrossEntropyLoss",
    "CrossNetwork",
    "DotInteraction",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "FactorizationMachine",
    "Flatten",
    "GroupNorm",
    "HuberLoss",
    "Identity",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LoadReport",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "clip_grad_norm_",
    "clip_grad_value_",
    "functional",
    "init",
]
