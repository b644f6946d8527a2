"""A data set as numbered blocks of samples: what every format offers, and all that streams need.

Blocks of an epoch have an order of their own, which the seed decides; any process may read any
block, so that ranks share a data set without speaking to each other.
"""

from abc import ABC, abstractmethod

from gradmesh.trainer.data.columns import Block
from gradmesh.trainer.data.fields import Fields


class Blocks(ABC):
    """Samples in blocks; a context manager."""

    fields: Fields

    @abstractmethod
    def read(self, epoch: int, block: int) -> Block | None:
        """Return a block, or None if the epoch has fewer.

        MUST give the same samples in the same order whenever and wherever it is asked. A block may
        be empty.

        Args:
            epoch: From 0; each has another order if the data are shuffled.
            block: From 0.

        Raises:
            DataError: The data cannot be read; names the file and the line.
        """

    @abstractmethod
    def count(self) -> int | None:
        """Return how many samples an epoch has; None if it never ends."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close files; may be called twice."""

    def __enter__(self) -> "Blocks":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
