"""Click models; their embedding layers are an argument, local or remote."""

from gradmesh.trainer.models.build import build_model as build_model
from gradmesh.trainer.models.build import row_dim as row_dim
from gradmesh.trainer.models.config import ModelConfig as ModelConfig
from gradmesh.trainer.models.embedding import LocalEmbedding as LocalEmbedding
from gradmesh.trainer.models.embedding import remote_embedding as remote_embedding
from gradmesh.trainer.models.networks import DLRM as DLRM
from gradmesh.trainer.models.networks import DCNv2 as DCNv2
from gradmesh.trainer.models.networks import TwoTower as TwoTower
from gradmesh.trainer.models.networks import WideDeep as WideDeep

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
