"""All-reduce between hosts with several ranks each: bytes cross the network once for each host.

Sums must be in rank order, so a host may not sum its own ranks first and add that to the sum of
another: only what comes before all others, `x0 + x1`, may be summed early. Hence a chain. The
prefix goes from host to host; each adds its ranks to it, in order; the last one has the result and
sends it to all. Chunk follows chunk, so both directions of the network are busy. Ranks of a host
must be neighbours in rank order, or nothing could be summed early and nothing be saved.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import final

import numpy as np

from gradmesh.engine.backend import view_of
from gradmesh.trainer.process_group.collective import (
    ONE_ROUND_BYTES,
    Collectives,
    PeerTransport,
    Segments,
    as_bytes,
)
from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp
from gradmesh.trainer.process_group.reduction import accumulation_dtype, combine_in_order, slices
from gradmesh.trainer.process_group.shm.slot_ring import SlotRing

_CHUNK_BYTES = 1 << 20
_BOXES = 3
# Leaders wait for their own host, then for others, and the rest for their leader: each a little
# longer, so that whoever knows the silent rank gives up first and names it.
_GRACE_S = 0.5


def ranks_by_host(hosts: Sequence[str]) -> list[range] | None:
    """Return the ranks of each host, None where a chain makes no sense.

    Args:
        hosts: Where each rank runs; empty where it cannot be told.
    """
    runs = [(host, len(list(run))) for host, run in groupby(hosts)]
    names = [host for host, _ in runs]
    if "" in names or len(set(names)) < len(names) or not 1 < len(names) < len(hosts):
        return None
    starts = np.cumsum([0, *(count for _, count in runs)]).tolist()
    return [range(start, start + count) for start, (_, count) in zip(starts, runs, strict=False)]


@final
class HierarchicalCollectives(Collectives):
    """What a rank does in each collective, with neighbours in shared memory.

    Args:
        rank: This process's rank in the group.
        blocks: The ranks of each host, in order.
        round_: Moves bytes between any two ranks.
        team: The ranks of this host.
    """

    def __init__(
        self, rank: int, blocks: Sequence[range], round_: PeerTransport, team: SlotRing
    ) -> None:
        super().__init__(rank, blocks[-1].stop, round_)
        self._team = team
        self._leaders = [block.start for block in blocks]
        self._host = next(place for place, block in enumerate(blocks) if rank in block)
        self._last = len(blocks) - 1
        self._is_leader = team.rank == 0
        self._stage = np.empty(0, np.uint8)
        # What comes from the host before, what goes on, and the result: in the leader's memory.
        self._boxes = team.heap.empty(_BOXES * _CHUNK_BYTES if self._is_leader else 0, np.uint8)

    def all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        """Combine `array` in place."""
        if array.nbytes <= ONE_ROUND_BYTES:
            super().all_reduce(text, array, op, deadline)
            return
        if not self._is_leader:
            deadline += 2 * _GRACE_S
        own = self._team.memories[self._team.rank]
        shared = array
        if own.offset_of(array) < 0:
            shared = view_of(self._staged(array.nbytes).view(array.dtype), array.shape)
            shared[...] = array
        self._team.wait_for_slot(deadline)
        number = self._team.begin(text, own.offset_of(shared), array.nbytes)
        self._team.meet(number, text, deadline)
        places = self._team.places(number)
        parts = [
            memory.array(place.offset, array.size, array.dtype)
            for memory, place in zip(self._team.memories, places, strict=True)
        ]
        self._team.finish(number)
        self._pass_along(text, parts, op, deadline)
        if shared is not array:
            array[...] = shared

    def _pass_along(
        self, text: str, parts: Sequence[AnyArray], op: ReduceOp, deadline: float
    ) -> None:
        """Run the chain over everybody's array of this host."""
        dtype, size = accumulation_dtype(parts[0].dtype, op), parts[0].size
        step = _CHUNK_BYTES // dtype.itemsize
        chunks = [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for turn in range(len(chunks) + self._last + 1):
            ours = _at(chunks, turn - self._host)
            sent = _at(chunks, turn - self._host - 1)
            ended = _at(chunks, turn - self._last - 1)
            if self._is_leader:
                self._talk(text, dtype, ours, sent, ended, deadline)
            self._team.wait_for_slot(deadline)
            at = self._team.memories[0].offset_of(self._boxes) if self._is_leader else 0
            number = self._team.begin(text, at, 0)
            self._team.meet(number, text, deadline)
            place = self._team.places(number)[0]
            boxes = self._team.memories[0].array(
                place.offset, (_BOXES, _CHUNK_BYTES // dtype.itemsize), dtype
            )
            if ours is not None:
                self._add(parts, boxes, ours, op)
            if ended is not None and self._host < self._last:
                for part, cut in self._cuts(parts, ended):
                    part[cut] = boxes[2][_shifted(cut, ended)]
            self._team.finish(number)
            self._team.wait_for_all(number, text, deadline)

    def _talk(
        self,
        text: str,
        dtype: np.dtype[np.generic],
        ours: slice | None,
        sent: slice | None,
        ended: slice | None,
        deadline: float,
    ) -> None:
        """Exchange chunks with the leaders of other hosts."""
        boxes = self._boxes.reshape(_BOXES, _CHUNK_BYTES)
        outgoing: dict[int, Segments] = {}
        incoming: dict[int, Segments] = {}
        if sent is not None:
            data = _part(boxes[1], sent, dtype)
            last = self._host == self._last
            for leader in self._leaders[:-1] if last else [self._leaders[self._host + 1]]:
                outgoing[leader] = data
        if ours is not None and self._host:
            incoming[self._leaders[self._host - 1]] = _part(boxes[0], ours, dtype)
        if ended is not None and self._host < self._last:
            incoming[self._leaders[-1]] = _part(boxes[2], ended, dtype)
        if outgoing or incoming:
            self._run(text, outgoing, incoming, deadline + _GRACE_S)

    def _add(self, parts: Sequence[AnyArray], boxes: AnyArray, chunk: slice, op: ReduceOp) -> None:
        """Add our share of a chunk of this host's ranks to what came; the last host is done."""
        _, cut = next(self._cuts(parts[:1], chunk))
        out = boxes[1][_shifted(cut, chunk)]
        before = [boxes[0][_shifted(cut, chunk)]] if self._host else []
        combine_in_order([*before, *(part[cut] for part in parts)], op, out)
        if self._host == self._last:
            if op == "avg":
                np.divide(out, out.dtype.type(self._size), out=out)
            for part in parts:
                part[cut] = out

    def _cuts(self, parts: Sequence[AnyArray], chunk: slice) -> Iterator[tuple[AnyArray, slice]]:
        """Yield every array with our share of a chunk of it."""
        share = slices(chunk.stop - chunk.start, self._team.size)[self._team.rank]
        for part in parts:
            yield part, slice(chunk.start + share.start, chunk.start + share.stop)

    def _staged(self, nbytes: int) -> AnyArray:
        if self._stage.size < nbytes:
            self._stage = np.empty(0, np.uint8)
            self._stage = self._team.heap.empty(nbytes, np.uint8)
        return self._stage[:nbytes]


def _at(chunks: Sequence[slice], place: int) -> slice | None:
    return chunks[place] if 0 <= place < len(chunks) else None


def _shifted(cut: slice, chunk: slice) -> slice:
    return slice(cut.start - chunk.start, cut.stop - chunk.start)


def _part(box: AnyArray, chunk: slice, dtype: np.dtype[np.generic]) -> Segments:
    return (as_bytes(box[: (chunk.stop - chunk.start) * dtype.itemsize]),)
