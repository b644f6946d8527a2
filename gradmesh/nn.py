"""Layers: the engine's, and those whose rows live on parameter servers."""

# Starred, because the engine's own list would otherwise be kept twice.
from gradmesh.engine.nn import *  # noqa: F403
from gradmesh.engine.nn import __all__ as _engine
from gradmesh.sdk.nn import RemoteEmbedding as RemoteEmbedding
from gradmesh.sdk.nn import RemoteEmbeddingBag as RemoteEmbeddingBag
from gradmesh.sdk.nn import RemoteModule as RemoteModule

__all__ = [*_engine, "RemoteEmbedding", "RemoteEmbeddingBag", "RemoteModule"]
