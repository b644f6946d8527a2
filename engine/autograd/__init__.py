"""Tensors and reverse-mode differentiation.

`tensor` must load first: ops, functions and the engine refer to it as a module, because they need
each other.
"""

# isort: off
from gradmesh.engine.autograd.tensor import Tensor as Tensor

# isort: on
from gradmesh.engine.autograd.backward_scope import BackwardScope as BackwardScope
from gradmesh.engine.autograd.backward_scope import gradient_map as gradient_map
from gradmesh.engine.autograd.backward_scope import queue_callback as queue_callback
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
from gradmesh.engine.autograd.engine import reachable_nodes as reachable_nodes
from gradmesh.engine.autograd.engine import run_backward as run_backward
from gradmesh.engine.autograd.function import Function as Function
from gradmesh.engine.autograd.grad_mode import detect_anomaly as detect_anomaly
from gradmesh.engine.autograd.grad_mode import enable_grad as enable_grad
from gradmesh.engine.autograd.grad_mode import is_grad_enabled as is_grad_enabled
from gradmesh.engine.autograd.grad_mode import no_grad as no_grad
from gradmesh.engine.autograd.grad_mode import set_grad_enabled as set_grad_enabled
from gradmesh.engine.autograd.gradcheck import gradcheck as gradcheck
from gradmesh.engine.autograd.inplace import renew as renew
from gradmesh.engine.autograd.leaf import HookHandle as HookHandle
from gradmesh.engine.autograd.local_pass import GradientEntry as GradientEntry
from gradmesh.engine.autograd.local_pass import LocalPass as LocalPass
from gradmesh.engine.autograd.local_pass import Origin as Origin
from gradmesh.engine.autograd.local_pass import ReceiveNode as ReceiveNode
from gradmesh.engine.autograd.local_pass import receive as receive
from gradmesh.engine.autograd.row_grad import RowGrad as RowGrad
from gradmesh.engine.autograd.tensor import grad_of as grad
from gradmesh.engine.errors import AnomalyError as AnomalyError
from gradmesh.engine.errors import GradientError as GradientError
from gradmesh.engine.errors import GraphReleased as GraphReleased
from gradmesh.engine.errors import InplaceError as InplaceError

__all__ = [
    "AnomalyError",
    "BackwardScope",
    "Function",
    "GradientEntry",
    "GradientError",
    "GraphReleased",
    "HookHandle",
    "InplaceError",
    "LocalPass",
    "Origin",
    "ReceiveNode",
    "RowGrad",
    "Tensor",
    "arange",
    "as_tensor",
    "detect_anomaly",
    "empty",
    "enable_grad",
    "from_numpy",
    "full",
    "grad",
    "gradcheck",
    "gradient_map",
    "is_grad_enabled",
    "no_grad",
    "ones",
    "ones_like",
    "queue_callback",
    "rand",
    "randint",
    "randn",
    "reachable_nodes",
    "receive",
    "renew",
    "run_backward",
    "set_grad_enabled",
    "tensor",
    "zeros",
    "zeros_like",
]
