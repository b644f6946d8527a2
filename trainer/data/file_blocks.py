"""What data sets of files share: columns are read, encoded and shuffled, block by block."""

from abc import abstractmethod

from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.columns import BadLine, Block, Columns
from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.order import BlockOrder, shuffled


class FileBlocks(Blocks):
    """Samples from files.

    Args:
        encoder: Makes ids of values.
        order: Whether and how epochs are shuffled.
    """

    def __init__(self, encoder: Encoder, order: BlockOrder) -> None:
        self.fields = encoder.fields
        self._encoder = encoder
        self._order = order

    def read(self, epoch: int, block: int) -> Block | None:
        """Return a block; see Blocks."""
        found = self.read_columns(epoch, block)
        if found is None:
            return None
        columns, bad = found
        samples = self._encoder.encode(columns)
        return Block(shuffled(samples, self._order, epoch, block), tuple(bad))

    @abstractmethod
    def read_columns(self, epoch: int, block: int) -> tuple[Columns, list[BadLine]] | None:
        """Return a block before it is encoded, in the order of the file, and what is left out."""
