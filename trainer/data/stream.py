"""An endless stream of batches for one rank, and its data position.

The position is a list of progressions: each is every stride-th block of an endless series of
epochs. One per rank divides a data set among the ranks. A rank that leaves hands its progression
over, a rank that joins takes half of one. So every sample of an epoch is read once, by any number
of ranks.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from gradmesh.trainer.data.reader import BlockReader
from gradmesh.trainer.data.samples import BadLines, Batch, join_batches
from gradmesh.trainer.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class Progression:
    """The blocks block, block + stride, … of an epoch, and of all epochs after it.

    Args:
        epoch: From 0.
        block: The next block.
        stride: Distance to the block after it.
        taken: Samples of the next block that were used already.
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
    """Return a rank's share of what is left, for any number of ranks.

    Args:
        progressions: All that is left, in the order of the ranks that had it.
        rank: Which rank.
        world_size: Number of ranks now.
    """
    left = list(progressions)
    while len(left) < world_size:
        # Halve the widest share: the one with the smallest stride.
        widest = min(range(len(left)), key=lambda place: left[place].stride)
        left[widest : widest + 1] = left[widest].halves()
    return left[rank::world_size]


def to_plain(progressions: Iterable[Progression]) -> list[dict[str, int]]:
    """Return a position as JSON holds it."""
    return [asdict(progression) for progression in progressions]


def from_plain(plain: Iterable[dict[str, Any]]) -> list[Progression]:
    """Return a position from JSON.

    Raises:
        ValueError: It is malformed.
    """
    try:
        return [Progression(**{k: int(v) for k, v in entry.items()}) for entry in plain]
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is not a position in a data set: {error}") from None


_BARREN_EPOCHS = 2


@final
class BatchStream:
    """Cuts blocks into batches; a context manager.

    Batches span the ends of blocks and epochs, so that all have the same size.

    Args:
        reader: Reads the blocks.
        progressions: The blocks of this rank that are left.
        batch_size: Samples of a batch.
        bad_lines: Counts the lines that are dropped.
    """

    def __init__(
        self,
        reader: BlockReader,
        progressions: Sequence[Progression],
        batch_size: int,
        bad_lines: BadLines,
    ) -> None:
        self.bad_lines = bad_lines
        self._reader = reader
        self._batch_size = batch_size
        # What is left after the batches so far; what was requested, in order.
        self._left = list(progressions)
        self._asked: deque[tuple[int, Progression]] = deque()
        self._ahead = list(progressions)
        self._turn = 0
        self._held: Batch | None = None
        self._used = 0
        self._owner = -1
        self._barren = 0

    @property
    def position(self) -> tuple[Progression, ...]:
        """What is left to read after the batches so far; the next progression comes first.

        Small enough for a checkpoint: a stream made from it continues here.
        """
        turn = self._owner if self._held is not None else self._owner + 1
        turn %= len(self._left)
        return tuple(self._left[turn:] + self._left[:turn])

    @property
    def epoch(self) -> int:
        """How many times the data have been read through."""
        return min(progression.epoch for progression in self._left)

    def next(self) -> Batch:
        """Return the next batch.

        Raises:
            DataError: The data cannot be read, hold too many bad lines, or nothing at all.
        """
        parts: list[Batch] = []
        wanted = self._batch_size
        while wanted:
            if self._held is None:
                self._fetch()
                continue
            part = self._held.part(self._used, self._used + wanted)
            parts.append(part)
            wanted -= part.size
            self._use(part.size)
        return join_batches(parts)

    def _use(self, samples: int) -> None:
        assert self._held is not None
        self._used += samples
        left = self._left[self._owner]
        if self._used >= self._held.size:
            self._held = None
            self._left[self._owner] = left.after_block()
        else:
            self._left[self._owner] = Progression(left.epoch, left.block, left.stride, self._used)

    def _fetch(self) -> None:
        """Hold the next block of this rank."""
        while len(self._asked) < self._reader.depth:
            place = self._turn % len(self._ahead)
            self._turn += 1
            ahead = self._ahead[place]
            self._reader.request(ahead.epoch, ahead.block)
            self._asked.append((place, ahead))
            self._ahead[place] = ahead.after_block()
        place, wanted = self._asked.popleft()
        block = self._reader.take()
        if block is None:
            self._end_epoch(place, wanted)
            return
        self.bad_lines.add(block.bad)
        self._owner, self._used = place, self._left[place].taken
        if self._used >= block.samples.size:
            # Empty, or used up to its last sample.
            self._left[place] = wanted.after_block()
            return
        self._barren = 0
        self._held = block.samples

    def _end_epoch(self, place: int, wanted: Progression) -> None:
        if wanted.epoch < self._left[place].epoch:
            return  # requested before the end was known
        self._barren += 1
        if self._barren > _BARREN_EPOCHS * len(self._left):
            raise DataError(
                "a trainer found no sample in its share of the data; give it more or bigger files,"
                " smaller blocks (data.block_kib), or start fewer trainers"
            )
        self._left[place] = self._ahead[place] = wanted.next_epoch()

    def close(self) -> None:
        """Close the reader; may be called twice."""
        self._reader.close()

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
