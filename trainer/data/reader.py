"""Gets blocks in the order in which they were asked for."""

from abc import ABC, abstractmethod
from collections import deque
from typing import final

from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.columns import Block


class BlockReader(ABC):
    """Reads ahead as far as it may.

    Attributes:
        depth: How many blocks to ask for before taking the first.
    """

    depth: int

    @abstractmethod
    def request(self, epoch: int, block: int) -> None:
        """Ask for a block."""

    @abstractmethod
    def take(self) -> Block | None:
        """Return the block that was asked for first; None if there is no such block.

        Raises:
            DataError: It cannot be read, or not in time.
        """

    @abstractmethod
    def close(self) -> None:
        """End; may be called twice, and with blocks not taken."""


@final
class LocalReader(BlockReader):
    """Reads in the caller's own thread, when a block is taken.

    Args:
        blocks: The data set; closed with the reader.
    """

    depth = 1

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._wanted: deque[tuple[int, int]] = deque()

    def request(self, epoch: int, block: int) -> None:
        """Ask for a block."""
        self._wanted.append((epoch, block))

    def take(self) -> Block | None:
        """Read the block that was asked for first."""
        return self._blocks.read(*self._wanted.popleft())

    def close(self) -> None:
        """Close the data set."""
        self._blocks.close()
