"""Where a trainer's samples come from: files of several formats, or a generator with a teacher."""

from gradmesh.trainer.data.blocks import Blocks as Blocks
from gradmesh.trainer.data.click import ClickData as ClickData
from gradmesh.trainer.data.click_spec import ClickSpec as ClickSpec
from gradmesh.trainer.data.click_spec import criteo_spec as criteo_spec
from gradmesh.trainer.data.config import DataConfig as DataConfig
from gradmesh.trainer.data.samples import Batch as Batch
from gradmesh.trainer.data.samples import Fields as Fields
from gradmesh.trainer.data.source import Source as Source
from gradmesh.trainer.data.source import Split as Split
from gradmesh.trainer.data.stream import BatchStream as BatchStream
from gradmesh.trainer.data.stream import Progression as Progression

__all__ = [
    "Batch",
    "BatchStream",
    "Blocks",
    "ClickData",
    "ClickSpec",
    "DataConfig",
    "Fields",
    "Progression",
    "Source",
    "Split",
    "criteo_spec",
]
