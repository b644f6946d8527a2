"""Generated clicks as an endless data set: block n is batch n."""

from typing import final

import numpy as np

from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.click import ClickData, Split
from gradmesh.trainer.data.columns import Block


@final
class ClickBlocks(Blocks):
    """Samples that are drawn when they are wanted.

    Args:
        data: Draws them.
        split: Which of the splits.
        block_samples: Samples of a block.
        blocks: How many blocks an epoch has; None never ends.
    """

    def __init__(
        self, data: ClickData, split: Split, block_samples: int, blocks: int | None = None
    ) -> None:
        self.fields = data.fields
        self._data = data
        self._split: Split = split
        self._block_samples = block_samples
        self._blocks = blocks

    def read(self, epoch: int, block: int) -> Block | None:
        """Return a block; every epoch has the same samples."""
        if self._blocks is not None and block >= self._blocks:
            return None
        batch = self._data.batch(self._split, block, self._block_samples)
        if self._data.spec.dense_law == "log-normal":
            # As an encoder would: numbers of this kind are counts, and counts are skewed.
            batch = batch._replace(dense=np.log1p(batch.dense))
        return Block(batch)

    def count(self) -> int | None:
        """Return how many samples an epoch has; None if it never ends."""
        return None if self._blocks is None else self._blocks * self._block_samples
