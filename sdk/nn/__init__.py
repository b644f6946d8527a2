"""Layers whose parameters are on parameter servers or other workers."""

from gradmesh.sdk.nn.remote_embedding import RemoteEmbedding as RemoteEmbedding
from gradmesh.sdk.nn.remote_embedding_bag import RemoteEmbeddingBag as RemoteEmbeddingBag
from gradmesh.sdk.nn.remote_module import RemoteModule as RemoteModule

__all__ = ["RemoteEmbedding", "RemoteEmbeddingBag", "RemoteModule"]
