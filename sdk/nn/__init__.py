"""Layers whose parameters live on the parameter servers."""

from gradmesh.sdk.nn.remote_embedding import RemoteEmbedding as RemoteEmbedding
from gradmesh.sdk.nn.remote_embedding_bag import RemoteEmbeddingBag as RemoteEmbeddingBag

__all__ = ["RemoteEmbedding", "RemoteEmbeddingBag"]
