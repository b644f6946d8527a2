"""Where a trainer's samples come from: generated clicks with a hidden teacher."""

from gradmesh.trainer.data.batch import Batch as Batch
from gradmesh.trainer.data.click import ClickData as ClickData
from gradmesh.trainer.data.click import Split as Split
from gradmesh.trainer.data.spec import ClickSpec as ClickSpec

__all__ = ["Batch", "ClickData", "ClickSpec", "Split"]
