"""Distributed autograd: one backward pass over this process and the parameter servers."""

from gradmesh.sdk.autograd.context import Context as Context
from gradmesh.sdk.autograd.context import context as context
from gradmesh.sdk.autograd.context import current_context as current_context
from gradmesh.sdk.autograd.passes import apply as apply
from gradmesh.sdk.autograd.passes import backward as backward
from gradmesh.sdk.autograd.passes import get_gradients as get_gradients

__all__ = ["Context", "apply", "backward", "context", "current_context", "get_gradients"]
