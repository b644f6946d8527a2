"""Which blocks are still to be read, as data: a position that survives another number of ranks.

A progression is every stride-th block of an endless series of epochs. One a rank divides a data set
among the ranks. A rank that leaves hands its progression to another, a rank that comes takes half
of one: so every sample of an epoch is read once, whoever reads it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Progression:
    """The blocks block, block + stride, … of an epoch, and of all epochs after it.

    Args:
        epoch: From 0.
        block: The next one.
        stride: How far it is to the one after.
        taken: How many samples of the next block were used already.
    """

    epoch: int
    block: int
    stride: int
    taken: int = 0

    def after_block(self) -> "Progression":
        """Return what is left once the next block is used up."""
        return Progression(self.epoch, self.block + self.stride, self.stride)

    def next_epoch(self) -> "Progression":
        """Return the same share of the epoch after this one."""
        return Progression(self.epoch + 1, self.block % self.stride, self.stride)

    def halves(self) -> tuple["Progression", "Progression"]:
        """Return two progressions that together are this one."""
        first = Progression(self.epoch, self.block, 2 * self.stride, self.taken)
        return first, Progression(self.epoch, self.block + self.stride, 2 * self.stride)


def begin(world_size: int) -> list[Progression]:
    """Return the shares of all ranks at the beginning."""
    return [Progression(0, rank, world_size) for rank in range(world_size)]


def share(progressions: Sequence[Progression], rank: int, world_size: int) -> list[Progression]:
    """Return a rank's part of what is left, for any number of ranks.

    Args:
        progressions: All that is left, in the order of the ranks that had it.
        rank: Whose part.
        world_size: How many ranks there are now.
    """
    left = list(progressions)
    while len(left) < world_size:
        # The one that waits longest for its turn to be halved has the smallest stride.
        widest = min(range(len(left)), key=lambda place: left[place].stride)
        left[widest : widest + 1] = left[widest].halves()
    return left[rank::world_size]


def to_plain(progressions: Iterable[Progression]) -> list[dict[str, int]]:
    """Return a position as JSON holds it."""
    return [asdict(progression) for progression in progressions]


def from_plain(plain: Iterable[dict[str, Any]]) -> list[Progression]:
    """Return a position from JSON.

    Raises:
        ValueError: It is none.
    """
    try:
        return [Progression(**{k: int(v) for k, v in entry.items()}) for entry in plain]
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is no position in a data set: {error}") from None
