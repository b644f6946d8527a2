"""Models that train here; embeddings are an argument, local or remote."""

from gradmesh.trainer.models.dlrm import DLRM as DLRM
from gradmesh.trainer.models.local_embedding import LocalEmbedding as LocalEmbedding

__all__ = ["DLRM", "LocalEmbedding"]
