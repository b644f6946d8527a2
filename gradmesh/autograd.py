"""Automatic differentiation, within a process and distributed over the mesh."""

from gradmesh.engine.autograd import Function as Function
from gradmesh.engine.autograd import RowGrad as RowGrad
from gradmesh.engine.autograd import detect_anomaly as detect_anomaly
from gradmesh.engine.autograd import enable_grad as enable_grad
from gradmesh.engine.autograd import grad as grad
from gradmesh.engine.autograd import gradcheck as gradcheck
from gradmesh.engine.autograd import is_grad_enabled as is_grad_enabled
from gradmesh.engine.autograd import no_grad as no_grad
from gradmesh.engine.autograd import queue_callback as queue_callback
from gradmesh.engine.autograd import renew as renew
from gradmesh.engine.autograd import set_grad_enabled as set_grad_enabled
from gradmesh.sdk.autograd import Context as Context
from gradmesh.sdk.autograd import apply as apply
from gradmesh.sdk.autograd import backward as backward
from gradmesh.sdk.autograd import carry as carry
from gradmesh.sdk.autograd import context as context
from gradmesh.sdk.autograd import current_context as current_context
from gradmesh.sdk.autograd import find_context as find_context
from gradmesh.sdk.autograd import get_gradients as get_gradients

__all__ = [
    "Context",
    "Function",
    "RowGrad",
    "apply",
    "backward",
    "carry",
    "context",
    "current_context",
    "detect_anomaly",
    "enable_grad",
    "find_context",
    "get_gradients",
    "grad",
    "gradcheck",
    "is_grad_enabled",
    "no_grad",
    "queue_callback",
    "renew",
    "set_grad_enabled",
]
