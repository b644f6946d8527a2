"""Where a trainer's samples come from: files of several formats, or a generator with a teacher."""

from gradmesh.trainer.data.batch import Batch as Batch
from gradmesh.trainer.data.blocks import Blocks as Blocks
from gradmesh.trainer.data.click import ClickData as ClickData
from gradmesh.trainer.data.config import DataConfig as DataConfig
from gradmesh.trainer.data.criteo_shape import criteo_spec as criteo_spec
from gradmesh.trainer.data.fields import Fields as Fields
from gradmesh.trainer.data.progression import Progression as Progression
from gradmesh.trainer.data.source import Source as Source
from gradmesh.trainer.data.source import Split as Split
from gradmesh.trainer.data.spec import ClickSpec as ClickSpec
from gradmesh.trainer.data.stream import Stream as Stream

__all__ = [
    "Batch",
    "Blocks",
    "ClickData",
    "ClickSpec",
    "DataConfig",
    "Fields",
    "Progression",
    "Source",
    "Split",
    "Stream",
    "criteo_spec",
]
