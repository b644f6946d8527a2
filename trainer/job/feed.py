"""The batches of a rank, step by step, and the data position of all ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.trainer.data import Batch, Progression, Source
from gradmesh.trainer.data.stream import BatchStream, begin, share
from gradmesh.trainer.process_group import ProcessGroup

_POSITION: Final = "data.position"
_STEP: Final = "data.step"


class DataPosition(NamedTuple):
    """The data position at which a run begins in a generation."""

    step: int
    """The first step that will be taken."""
    batches: int
    """Batches of all trainers before it."""
    saved: Mapping[str, Any] | None = None
    """What `Feed.arrays` returned in an earlier generation; None for the beginning of the data."""


@final
class Feed:
    """Gives each step its batch, ahead of time if asked.

    From time to time the ranks agree on what all of them have read. A rank that resumes from that
    position replays what all ranks read between it and the current step, and takes its share of the
    rest. So every sample of an epoch is used once, for any number of ranks.

    Args:
        source: The data.
        group: The ranks.
        batch_size: Samples of a batch.
        position: Where to begin.
    """

    def __init__(
        self, source: Source, group: ProcessGroup, batch_size: int, position: DataPosition
    ) -> None:
        self._group = group
        if source.is_endless:
            # Its blocks are batches: nothing has to be read to be skipped.
            own = [Progression(0, position.batches + group.rank, group.size)]
        else:
            own = share(_left(source, batch_size, position, group.size), group.rank, group.size)
        self._stream: BatchStream = source.stream(own, batch_size)
        self._next = position.step
        self._drawn: dict[int, Batch] = {}
        self._positions = {position.step - 1: self._stream.position}
        self._at, self._everything = position.step, [self._stream.position]
        self.agree(position.step)

    @property
    def bad_lines(self) -> int:
        """Number of lines that this rank dropped."""
        return self._stream.bad_lines.count

    def peek(self, step: int) -> Batch:
        """Return the batch of a step without consuming it."""
        while self._next <= step:
            self._drawn[self._next] = self._stream.next()
            self._positions[self._next] = self._stream.position
            self._next += 1
        return self._drawn[step]

    def take(self, step: int) -> Batch:
        """Return the batch of a step and consume it."""
        batch = self.peek(step)
        del self._drawn[step]
        self._positions = {at: held for at, held in self._positions.items() if at >= step}
        return batch

    def agree(self, steps: int) -> None:
        """Exchange the position of every rank after `steps` steps; collective."""
        own = _to_array([self._positions[steps - 1]])
        sizes = np.empty((self._group.size, 1), np.int64)
        self._group.all_gather(list(sizes), np.array([len(own)], np.int64)).wait()
        gathered = [np.empty((int(size), 5), np.int64) for size in sizes[:, 0]]
        self._group.all_gather(gathered, own).wait()
        self._at = steps
        self._everything = [tuple(_from_array(part)[0]) for part in gathered]

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the last agreed position as arrays, to keep with the dense part."""
        return {
            _STEP: np.array([self._at], np.int64),
            _POSITION: _to_array(self._everything),
        }

    def close(self) -> None:
        """End the readers; may be called twice."""
        self._stream.close()


def _left(
    source: Source, batch_size: int, position: DataPosition, world_size: int
) -> list[Progression]:
    """Return what all ranks together have left to read at a position."""
    if not position.saved or _POSITION not in position.saved:
        return begin(world_size)
    skip = max(0, position.step - int(position.saved[_STEP][0]))
    left: list[Progression] = []
    for own in _from_array(position.saved[_POSITION]):
        if skip:
            with source.stream(own, batch_size) as stream:
                for _ in range(skip):
                    stream.next()
                own = list(stream.position)
        left += own
    return left


def _to_array(ranks: Sequence[Sequence[Progression]]) -> NDArray[np.int64]:
    """Return the progressions of all ranks, int64 [n, 5]; the last column is the rank."""
    rows = [
        (p.epoch, p.block, p.stride, p.taken, rank) for rank, own in enumerate(ranks) for p in own
    ]
    return np.array(rows, np.int64).reshape(-1, 5)


def _from_array(array: Any) -> list[list[Progression]]:
    """Return the progressions of each rank."""
    ranks: dict[int, list[Progression]] = {}
    for *numbers, rank in np.asarray(array).tolist():
        ranks.setdefault(rank, []).append(Progression(*numbers))
    return [ranks[rank] for rank in sorted(ranks)]
