"""Models that train here; embeddings are an argument, local or remote."""

from gradmesh.trainer.models.catalogue import build_model as build_model
from gradmesh.trainer.models.catalogue import row_dim as row_dim
from gradmesh.trainer.models.config import ModelConfig as ModelConfig
from gradmesh.trainer.models.dcn import DCNv2 as DCNv2
from gradmesh.trainer.models.dlrm import DLRM as DLRM
from gradmesh.trainer.models.local_embedding import LocalEmbedding as LocalEmbedding
from gradmesh.trainer.models.remote_embedding import remote_embedding as remote_embedding
from gradmesh.trainer.models.two_tower import TwoTower as TwoTower
from gradmesh.trainer.models.wide_deep import WideDeep as WideDeep

__all__ = [
    "DLRM",
    "DCNv2",
    "LocalEmbedding",
    "ModelConfig",
    "TwoTower",
    "WideDeep",
    "build_model",
    "remote_embedding",
    "row_dim",
]
