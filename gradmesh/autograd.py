"""Differentiation: the engine's within a process, contexts and backward over the whole mesh."""

# Starred, because the engine's own list would otherwise be kept twice.
from gradmesh.engine.autograd import *  # noqa: F403
from gradmesh.engine.autograd import __all__ as _engine
from gradmesh.sdk.autograd import Context as Context
from gradmesh.sdk.autograd import apply as apply
from gradmesh.sdk.autograd import backward as backward
from gradmesh.sdk.autograd import carry as carry
from gradmesh.sdk.autograd import context as context
from gradmesh.sdk.autograd import current_context as current_context
from gradmesh.sdk.autograd import find_context as find_context
from gradmesh.sdk.autograd import get_gradients as get_gradients

__all__ = [
    *_engine,
    "Context",
    "apply",
    "backward",
    "carry",
    "context",
    "current_context",
    "find_context",
    "get_gradients",
]
