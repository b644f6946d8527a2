"""Distributed autograd: one backward pass over this process, other workers and table servers."""

from gradmesh.sdk.autograd.apply import apply as apply
from gradmesh.sdk.autograd.backward import backward as backward
from gradmesh.sdk.autograd.backward import get_gradients as get_gradients
from gradmesh.sdk.autograd.context import Context as Context
from gradmesh.sdk.autograd.current import carry as carry
from gradmesh.sdk.autograd.current import current_context as current_context
from gradmesh.sdk.autograd.registry import context as context
from gradmesh.sdk.autograd.registry import find_context as find_context
from gradmesh.sdk.autograd.registry import step_context as step_context

__all__ = [
    "Context",
    "apply",
    "backward",
    "carry",
    "context",
    "current_context",
    "find_context",
    "get_gradients",
    "step_context",
]
