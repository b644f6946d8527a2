"""The batches of a rank, step by step, and where in the data the ranks are."""

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
    """Where a run is in the data."""

    step: int
    """The first step that will be asked for."""
    batches: int
    """Batches of all trainers that are behind it."""
    saved: Mapping[str, Any] | None = None
    """What `Feed.arrays` returned in a former generation; the beginning if nothing is there."""


@final
class Feed:
    """Gives each step its batch; ahead of time, if asked.

    What all ranks have read is agreed on from time to time. Whoever goes on from such a position
    reads again what came between it and its step, of all ranks, and takes its share of the rest:
    every sample of an epoch comes once, whatever happens to ranks and their number.

    Args:
        source: The data.
        group: The ranks.
        batch_size: Samples of a batch.
        place: Where to begin.
    """

    def __init__(
        self, source: Source, group: ProcessGroup, batch_size: int, place: DataPosition
    ) -> None:
        self._group = group
        if source.is_endless:
            # Its blocks are batches: nothing has to be read to be left out.
            own = [Progression(0, place.batches + group.rank, group.size)]
        else:
            own = share(_left(source, batch_size, place, group.size), group.rank, group.size)
        self._stream: BatchStream = source.stream(own, batch_size)
        self._next = place.step
        self._drawn: dict[int, Batch] = {}
        self._positions = {place.step - 1: self._stream.position}
        self._at, self._everything = place.step, [self._stream.position]
        self.agree(place.step)

    @property
    def bad_lines(self) -> int:
        """How many lines this rank left out."""
        return self._stream.bad_lines.count

    def peek(self, step: int) -> Batch:
        """Return the batch of a step, and keep it."""
        while self._next <= step:
            self._drawn[self._next] = self._stream.next()
            self._positions[self._next] = self._stream.position
            self._next += 1
        return self._drawn[step]

    def take(self, step: int) -> Batch:
        """Return the batch of a step, which nobody will ask for again."""
        batch = self.peek(step)
        del self._drawn[step]
        self._positions = {at: held for at, held in self._positions.items() if at >= step}
        return batch

    def agree(self, steps: int) -> None:
        """Let all ranks know where each is after so many steps; collective."""
        own = _to_array([self._positions[steps - 1]])
        sizes = np.empty((self._group.size, 1), np.int64)
        self._group.all_gather(list(sizes), np.array([len(own)], np.int64)).wait()
        gathered = [np.empty((int(size), 5), np.int64) for size in sizes[:, 0]]
        self._group.all_gather(gathered, own).wait()
        self._at = steps
        self._everything = [tuple(_from_array(part)[0]) for part in gathered]

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the last agreed position as arrays, to be kept with the dense part."""
        return {
            _STEP: np.array([self._at], np.int64),
            _POSITION: _to_array(self._everything),
        }

    def close(self) -> None:
        """End the readers; may be called twice."""
        self._stream.close()


def _left(
    source: Source, batch_size: int, place: DataPosition, world_size: int
) -> list[Progression]:
    """Return what all ranks together have left to read at a place."""
    if not place.saved or _POSITION not in place.saved:
        return begin(world_size)
    skip = max(0, place.step - int(place.saved[_STEP][0]))
    left: list[Progression] = []
    for own in _from_array(place.saved[_POSITION]):
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
