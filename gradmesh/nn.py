"""Layers, local ones and those whose parameters are on parameter servers or other workers."""

# A star import, so that the engine's list of names is not duplicated.
from gradmesh.engine.nn import *  # noqa: F403
from gradmesh.engine.nn import __all__ as _engine
from gradmesh.sdk.nn import RemoteEmbedding as RemoteEmbedding
from gradmesh.sdk.nn import RemoteEmbeddingBag as RemoteEmbeddingBag
from gradmesh.sdk.nn import RemoteModule as RemoteModule

__all__ = [*_engine, "RemoteEmbedding", "RemoteEmbeddingBag", "RemoteModule"]
