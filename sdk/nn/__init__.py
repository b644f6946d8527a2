"""Layers whose parameters live on the parameter servers."""

from gradmesh.sdk.nn.remote_embedding import RemoteEmbedding as RemoteEmbedding

__all__ = ["RemoteEmbedding"]
