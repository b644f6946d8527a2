"""Hierarchical all-reduce: shared memory within a host, a chain between hosts.

Bytes cross the network once for each host. Sums must be in rank order, so a host cannot sum its own
ranks first and add that to the sum of another host: only a prefix, `x0 + x1`, can be summed. Hence
a chain: the prefix goes from host to host, each adds its ranks to it in order, and the last host
sends the result to all. Chunks are pipelined, so both directions of the network are busy. The ranks
of a host must be consecutive, or no prefix could be summed on one host.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import final

import numpy as np

from gradmesh.engine.backend import view_of
from gradmesh.trainer.process_group.collective import (
    ONE_EXCHANGE_BYTES,
    Collectives,
    PeerTransport,
    Segments,
    as_bytes,
)
from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp
from gradmesh.trainer.process_group.reduction import accumulation_dtype, combine_in_order, slices
from gradmesh.trainer.process_group.shm.slot_ring import SlotRing, other_size

_CHUNK_BYTES = 1 << 20
_BUFFERS = 3
# Leaders wait for their own host, then for other hosts, and the other ranks for their leader: each
# a little longer, so that the rank that can name the silent one times out first.
_GRACE_S = 0.5


def ranks_by_host(hosts: Sequence[str]) -> list[range] | None:
    """Return the ranks of each host, None if a chain does not save traffic.

    Args:
        hosts: The host of each rank; empty if unknown.
    """
    runs = [(host, len(list(run))) for host, run in groupby(hosts)]
    names = [host for host, _ in runs]
    if "" in names or len(set(names)) < len(names) or not 1 < len(names) < len(hosts):
        return None
    starts = np.cumsum([0, *(count for _, count in runs)]).tolist()
    return [range(start, start + count) for start, (_, count) in zip(starts, runs, strict=False)]


@final
class HierarchicalCollectives(Collectives):
    """Run each collective, with the other ranks of the host in shared memory.

    Args:
        rank: This process's rank in the group.
        blocks: The ranks of each host, in order.
        transport: Exchanges bytes between any two ranks.
        ring: Synchronises the ranks of this host.
    """

    def __init__(
        self, rank: int, blocks: Sequence[range], transport: PeerTransport, ring: SlotRing
    ) -> None:
        super().__init__(rank, blocks[-1].stop, transport)
        self._ring = ring
        self._leaders = [block.start for block in blocks]
        self._host = next(index for index, block in enumerate(blocks) if rank in block)
        self._last = len(blocks) - 1
        self._is_leader = ring.rank == 0
        self._stage = np.empty(0, np.uint8)
        # From the previous host, to the next host, and the result: in the leader's memory.
        self._buffers = ring.heap.empty(_BUFFERS * _CHUNK_BYTES if self._is_leader else 0, np.uint8)

    def all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        """Combine `array` in place."""
        if array.nbytes <= ONE_EXCHANGE_BYTES:
            super().all_reduce(text, array, op, deadline)
            return
        if not self._is_leader:
            deadline += 2 * _GRACE_S
        own = self._ring.memories[self._ring.rank]
        shared = array
        if own.offset_of(array) < 0:
            shared = view_of(self._staged(array.nbytes).view(array.dtype), array.shape)
            shared[...] = array
        self._ring.wait_for_slot(deadline)
        offset = own.offset_of(shared)
        if offset < 0:
            raise MemoryError(f"no shared memory is left for {array.nbytes} bytes")
        number = self._ring.begin(text, offset, array.nbytes)
        self._ring.meet(number, text, deadline)
        ranges = self._ring.full_ranges(number, array.nbytes)
        parts = [
            memory.array(part.offset, array.size, array.dtype)
            for memory, part in zip(self._ring.memories, ranges, strict=True)
        ]
        self._ring.finish(number)
        self._run_chain(text, parts, op, deadline)
        if shared is not array:
            array[...] = shared

    def _run_chain(
        self, text: str, parts: Sequence[AnyArray], op: ReduceOp, deadline: float
    ) -> None:
        """Run the chain over the arrays of this host's ranks."""
        dtype, size = accumulation_dtype(parts[0].dtype, op), parts[0].size
        step = _CHUNK_BYTES // dtype.itemsize
        chunks = [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for turn in range(len(chunks) + self._last + 1):
            added = _at(chunks, turn - self._host)
            sent = _at(chunks, turn - self._host - 1)
            done = _at(chunks, turn - self._last - 1)
            if self._is_leader:
                self._exchange_chunks(text, dtype, added, sent, done, deadline)
            self._ring.wait_for_slot(deadline)
            at = self._ring.memories[0].offset_of(self._buffers) if self._is_leader else 0
            number = self._ring.begin(text, at, self._buffers.nbytes)
            self._ring.meet(number, text, deadline)
            buffer_range = self._ring.ranges(number)[0]
            if buffer_range.nbytes != _BUFFERS * _CHUNK_BYTES:
                leader = self._leaders[self._host]
                raise other_size(leader, buffer_range.nbytes, _BUFFERS * _CHUNK_BYTES)
            buffers = self._ring.memories[0].array(
                buffer_range.offset, (_BUFFERS, _CHUNK_BYTES // dtype.itemsize), dtype
            )
            if added is not None:
                self._add(parts, buffers, added, op)
            if done is not None and self._host < self._last:
                for part, cut in self._cuts(parts, done):
                    part[cut] = buffers[2][_shifted(cut, done)]
            self._ring.finish(number)
            self._ring.wait_for_all(number, text, deadline)

    def _exchange_chunks(
        self,
        text: str,
        dtype: np.dtype[np.generic],
        added: slice | None,
        sent: slice | None,
        done: slice | None,
        deadline: float,
    ) -> None:
        """Exchange chunks with the leaders of other hosts."""
        buffers = self._buffers.reshape(_BUFFERS, _CHUNK_BYTES)
        outgoing: dict[int, Segments] = {}
        incoming: dict[int, Segments] = {}
        if sent is not None:
            data = _part(buffers[1], sent, dtype)
            last = self._host == self._last
            for leader in self._leaders[:-1] if last else [self._leaders[self._host + 1]]:
                outgoing[leader] = data
        if added is not None and self._host:
            incoming[self._leaders[self._host - 1]] = _part(buffers[0], added, dtype)
        if done is not None and self._host < self._last:
            incoming[self._leaders[-1]] = _part(buffers[2], done, dtype)
        if outgoing or incoming:
            self._run(text, outgoing, incoming, deadline + _GRACE_S)

    def _add(
        self, parts: Sequence[AnyArray], buffers: AnyArray, chunk: slice, op: ReduceOp
    ) -> None:
        """Add this rank's share of a chunk to the prefix; on the last host it is the result."""
        _, cut = next(self._cuts(parts[:1], chunk))
        out = buffers[1][_shifted(cut, chunk)]
        before = [buffers[0][_shifted(cut, chunk)]] if self._host else []
        combine_in_order([*before, *(part[cut] for part in parts)], op, out)
        if self._host == self._last:
            if op == "avg":
                np.divide(out, out.dtype.type(self._size), out=out)
            for part in parts:
                part[cut] = out

    def _cuts(self, parts: Sequence[AnyArray], chunk: slice) -> Iterator[tuple[AnyArray, slice]]:
        """Yield every array with this rank's share of a chunk of it."""
        share = slices(chunk.stop - chunk.start, self._ring.size)[self._ring.rank]
        for part in parts:
            yield part, slice(chunk.start + share.start, chunk.start + share.stop)

    def _staged(self, nbytes: int) -> AnyArray:
        if self._stage.size < nbytes:
            self._stage = np.empty(0, np.uint8)
            self._stage = self._ring.heap.empty(nbytes, np.uint8)
        return self._stage[:nbytes]


def _at(chunks: Sequence[slice], index: int) -> slice | None:
    return chunks[index] if 0 <= index < len(chunks) else None


def _shifted(cut: slice, chunk: slice) -> slice:
    return slice(cut.start - chunk.start, cut.stop - chunk.start)


def _part(buffer: AnyArray, chunk: slice, dtype: np.dtype[np.generic]) -> Segments:
    return (as_bytes(buffer[: (chunk.stop - chunk.start) * dtype.itemsize]),)
