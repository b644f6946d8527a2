"""A data set as numbered blocks of samples: what every format implements and all that streams need.

The seed decides the order of an epoch's blocks. Any process may read any block, so ranks share a
data set without communication.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.samples import BadLine, Batch, Block, Columns, Fields


class Blocks(ABC):
    """Samples in blocks; a context manager."""

    fields: Fields

    @abstractmethod
    def read(self, epoch: int, block: int) -> Block | None:
        """Return a block, or None if the epoch has fewer.

        MUST return the same samples in the same order at any time and on any process. A block may
        be empty.

        Args:
            epoch: From 0; each has another order if the data are shuffled.
            block: From 0.

        Raises:
            DataError: The data cannot be read; names the file and the line.
        """

    @abstractmethod
    def count(self) -> int | None:
        """Return the number of samples of an epoch; None if it never ends."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close files; may be called twice."""

    def __enter__(self) -> "Blocks":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_BLOCKS, _SAMPLES = 0, 1


@final
@dataclass(frozen=True, slots=True)
class BlockOrder:
    """How epochs are shuffled.

    Args:
        seed: Decides the order; None keeps the order of the files.
    """

    seed: int | None = None

    def place(self, epoch: int, number: int, count: int) -> int | None:
        """Return which of `count` blocks comes at position `number`; None past the last."""
        if number >= count:
            return None
        return number if self.seed is None else int(_permutation(self.seed, epoch, count)[number])


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, count: int) -> Any:
    return np.random.default_rng([seed, _BLOCKS, epoch]).permutation(count)


def shuffled(samples: Batch, order: BlockOrder, epoch: int, block: int) -> Batch:
    """Return the samples of a block in the order of an epoch."""
    if order.seed is None:
        return samples
    chance = np.random.default_rng([order.seed, _SAMPLES, epoch, block])
    places = chance.permutation(samples.size)
    return Batch(samples.dense[places], samples.ids[places], samples.labels[places])


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
        """Return a block before it is encoded, in the order of the file, and its bad lines."""
