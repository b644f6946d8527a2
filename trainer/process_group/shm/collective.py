"""Collectives of ranks on one host, which read and write each other's memory.

All-reduce of big arrays: each rank sums its slice of all ranks' arrays in rank order and writes the
result to all of them: one pass, no copy. Arrays outside the shared memory are copied in and out.
Small arrays are copied into a slot in the call; the thread that waits sums the slots of all ranks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import numpy as np

from gradmesh.engine.backend import view_of
from gradmesh.trainer.process_group.collective import Collectives, Continuation, PeerTransport
from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp
from gradmesh.trainer.process_group.reduction import reduce_in_order
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.slot_ring import (
    SMALL_BYTES,
    MemoryRange,
    SlotRing,
    other_size,
)

_ALIGN = 64
_NO_OFFSET = 0
# Compiling the others would mean to repeat numpy's rules for NaN and half precision.
_COMPILED_OPS = ("sum", "avg")


@final
class SharedCollectives(Collectives):
    """Run each collective in shared memory. One thread at a time.

    Args:
        ring: The slots in shared memory.
        transport: Sends messages between two ranks.
        count: Called with the number of bytes that crossed between ranks.
    """

    def __init__(
        self, ring: SlotRing, transport: PeerTransport, count: Callable[[int], None]
    ) -> None:
        super().__init__(ring.rank, ring.size, transport)
        self._ring = ring
        self._count = count
        self._stage = np.empty(0, np.uint8)
        self._blocks = {dtype: np.empty(kernel.BLOCK, dtype) for dtype in kernel.COMPILED}

    def begin_all_reduce(self, text: str, array: AnyArray, op: ReduceOp) -> Continuation | None:
        """Copy a small array into its slot, if that is free."""
        if array.nbytes > SMALL_BYTES or self._ring.next_number() is None:
            return None
        return partial(self._sum_small, text, array, op, self._begin_small(text, array))

    def begin_barrier(self, text: str) -> Continuation | None:
        """Arrive at the barrier, if the slot is free."""
        if self._ring.next_number() is None:
            return None
        return partial(self._end_barrier, text, self._ring.begin(text, _NO_OFFSET, 0))

    def needs_thread(self) -> bool:
        """Return False: the peers read from shared memory what this rank has begun."""
        return False

    def barrier(self, text: str, deadline: float) -> None:
        """Wait for every peer."""
        self._ring.wait_for_slot(deadline)
        self._end_barrier(text, self._ring.begin(text, _NO_OFFSET, 0), deadline)

    def _end_barrier(self, text: str, number: int, deadline: float) -> None:
        self._ring.meet(number, text, deadline)
        self._ring.finish(number)

    def all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        """Combine `array` in place."""
        if array.nbytes <= SMALL_BYTES:
            self._ring.wait_for_slot(deadline)
            self._sum_small(text, array, op, self._begin_small(text, array), deadline)
            return
        offset = self._ring.memories[self._rank].offset_of(array)
        stage = None
        if offset < 0:
            stage = view_of(self._staged(array.nbytes).view(array.dtype), array.shape)
            stage[...] = array
            offset = self._offset(stage)
        nbytes = array.nbytes
        self._run_with_all(
            text,
            offset,
            nbytes,
            lambda ranges: self._sum_slice(ranges, array, op),
            deadline,
            nbytes,
        )
        if stage is not None:
            array[...] = stage
        self._count(4 * (self._size - 1) * array.nbytes // self._size)

    def reduce_scatter(
        self, text: str, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp, deadline: float
    ) -> None:
        """Combine `inputs[rank]` of all ranks into `output`."""

        def reduce(ranges: Sequence[MemoryRange]) -> None:
            parts = [self._unpack(ranges, r, self._rank, output) for r in range(self._size)]
            total = parts[0].copy()
            reduce_in_order([total, *parts[1:]], op, out=total)
            output[...] = total

        self._run_with_all(text, *self._pack(inputs), reduce, deadline)

    def broadcast(self, text: str, array: AnyArray, root: int, deadline: float) -> None:
        """Copy the root's `array` to all."""
        offset = _NO_OFFSET
        if self._rank == root:
            offset = self._ring.memories[self._rank].offset_of(array)
            if offset < 0:
                offset = self._pack_one(array)

        def take(ranges: Sequence[MemoryRange]) -> None:
            if self._rank != root:
                array[...] = self._peer(root, ranges[root], array)

        self._run_with_all(text, offset, array.nbytes, take, deadline)

    def all_gather(
        self, text: str, outputs: Sequence[AnyArray], array: AnyArray, deadline: float
    ) -> None:
        """Copy the `array` of every rank to all."""
        offset = self._ring.memories[self._rank].offset_of(array)
        if offset < 0:
            offset = self._pack_one(array)

        def take(ranges: Sequence[MemoryRange]) -> None:
            for r in self._peers:
                outputs[r][...] = self._peer(r, ranges[r], outputs[r])

        self._run_with_all(text, offset, array.nbytes, take, deadline)
        outputs[self._rank][...] = array

    def all_to_all(
        self, text: str, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray], deadline: float
    ) -> None:
        """Send a part to each rank, and receive one from each."""

        def take(ranges: Sequence[MemoryRange]) -> None:
            for r in range(self._size):
                outputs[r][...] = self._unpack(ranges, r, self._rank, outputs[r])

        self._run_with_all(text, *self._pack(inputs), take, deadline)

    def gather(
        self,
        text: str,
        outputs: Sequence[AnyArray] | None,
        array: AnyArray,
        root: int,
        deadline: float,
    ) -> None:
        """Copy the `array` of every rank to the root."""

        def take(ranges: Sequence[MemoryRange]) -> None:
            if outputs is not None and self._rank == root:
                for r in range(self._size):
                    outputs[r][...] = self._peer(r, ranges[r], outputs[r])

        self._run_with_all(text, self._pack_one(array), array.nbytes, take, deadline)

    def scatter(
        self,
        text: str,
        array: AnyArray,
        inputs: Sequence[AnyArray] | None,
        root: int,
        deadline: float,
    ) -> None:
        """Copy each rank's share from the root."""
        range_ = MemoryRange(_NO_OFFSET, 0)
        if inputs is not None and self._rank == root:
            range_ = self._pack(inputs)

        def take(ranges: Sequence[MemoryRange]) -> None:
            array[...] = self._unpack(ranges, root, self._rank, array)

        self._run_with_all(text, *range_, take, deadline)

    def _run_with_all(
        self,
        text: str,
        offset: int,
        nbytes: int,
        act: Callable[[Sequence[MemoryRange]], None],
        deadline: float,
        every: int | None = None,
    ) -> None:
        """Call `act` when all ranks have arrived, and wait until all have finished.

        Args:
            text: The collective in words.
            offset: Where this rank's array is.
            nbytes: Its size.
            act: Takes the ranges of all ranks.
            deadline: When to give up.
            every: The size that every rank's array must have; None if sizes differ.
        """
        self._ring.wait_for_slot(deadline)
        number = self._ring.begin(text, offset, nbytes)
        self._ring.meet(number, text, deadline)
        ring = self._ring
        act(ring.ranges(number) if every is None else ring.full_ranges(number, every))
        self._ring.finish(number)
        self._ring.wait_for_all(number, text, deadline)

    def _begin_small(self, text: str, array: AnyArray) -> int:
        if _is_plain(array):
            return self._ring.begin_small(text, array.reshape(-1))
        # The slot of the number that the next `begin` returns.
        number = self._ring.next_number()
        assert number is not None
        offset = self._ring.small(number)
        own = self._ring.memories[self._rank]
        own.array(offset, array.shape, array.dtype)[...] = array
        return self._ring.begin(text, offset, array.nbytes)

    def _sum_small(
        self, text: str, array: AnyArray, op: ReduceOp, number: int, deadline: float
    ) -> None:
        self._ring.meet(number, text, deadline)
        if op in _COMPILED_OPS and _is_plain(array):
            self._ring.finish_small(number, array.reshape(-1), op == "avg")
        else:
            offset = self._ring.small(number)
            parts = [m.array(offset, array.shape, array.dtype) for m in self._ring.memories]
            total = parts[0].copy()
            reduce_in_order([total, *parts[1:]], op, out=total)
            array[...] = total
            self._ring.finish(number)
        self._count(2 * (self._size - 1) * array.nbytes)

    def _sum_slice(self, ranges: Sequence[MemoryRange], array: AnyArray, op: ReduceOp) -> None:
        """Sum this rank's slice of all arrays, and write it to all of them."""
        cut = _slice(array.size, array.dtype.itemsize, self._rank, self._size)
        memories = self._ring.memories
        if array.dtype in kernel.COMPILED and op in _COMPILED_OPS:
            at = [m.address + range_.offset for m, range_ in zip(memories, ranges, strict=True)]
            addresses = np.array(at, np.int64)
            scratch = self._blocks[array.dtype]
            reduce = kernel.mean if op == "avg" else kernel.total
            reduce(addresses, addresses, cut.start, cut.stop, scratch)
            return
        parts = [
            m.array(range_.offset, array.size, array.dtype)[cut]
            for m, range_ in zip(memories, ranges, strict=True)
        ]
        reduce_in_order(parts, op, out=parts[self._rank])
        for r in self._peers:
            parts[r][...] = parts[self._rank]

    def _peer(self, rank: int, range_: MemoryRange, like: AnyArray) -> AnyArray:
        """Return a rank's array, or raise if its size differs from the expected one."""
        if range_.nbytes != like.nbytes:
            raise other_size(rank, range_.nbytes, like.nbytes)
        return self._ring.memories[rank].array(range_.offset, like.shape, like.dtype)

    def _staged(self, nbytes: int) -> AnyArray:
        """Return shared scratch memory, valid until the next call."""
        if self._stage.size < nbytes:
            self._stage = np.empty(0, np.uint8)
            self._stage = self._ring.heap.empty(nbytes, np.uint8)
        return self._stage[:nbytes]

    def _offset(self, array: AnyArray) -> int:
        offset = self._ring.memories[self._rank].offset_of(array)
        if offset < 0:
            raise MemoryError(f"no shared memory is left for {array.nbytes} bytes")
        return offset

    def _pack_one(self, array: AnyArray) -> int:
        """Copy an array to scratch memory; return its offset."""
        stage = self._staged(max(array.nbytes, 1))[: array.nbytes]
        view_of(stage.view(array.dtype), array.shape)[...] = array
        return self._offset(stage)

    def _pack(self, arrays: Sequence[AnyArray]) -> MemoryRange:
        """Copy one array for each rank to scratch memory, after a table of their sizes."""
        sizes = np.array([array.nbytes for array in arrays], np.int64)
        starts = _starts(sizes)
        stage = self._staged(int(starts[-1]))
        stage[: sizes.nbytes].view(np.int64)[...] = sizes
        for start, array in zip(starts, arrays, strict=False):
            part = stage[start : start + array.nbytes]
            view_of(part.view(array.dtype), array.shape)[...] = array
        return MemoryRange(self._offset(stage), stage.nbytes)

    def _unpack(
        self, ranges: Sequence[MemoryRange], rank: int, index: int, like: AnyArray
    ) -> AnyArray:
        """Return the part for rank `index` of the arrays that a rank packed."""
        memory, (offset, nbytes) = self._ring.memories[rank], ranges[rank]
        if nbytes < 8 * self._size:
            raise other_size(rank, nbytes, like.nbytes)
        # A copy: the rank could change a size between its check and its use.
        sizes = memory.array(offset, self._size, np.int64).copy()
        if sizes[index] != like.nbytes:
            raise other_size(rank, int(sizes[index]), like.nbytes)
        start = int(_starts(sizes)[index])
        if not 0 <= start <= nbytes - like.nbytes:
            raise other_size(rank, nbytes - start, like.nbytes)
        return memory.array(offset + start, like.shape, like.dtype)


def _starts(sizes: AnyArray) -> AnyArray:
    """Return the offset of each part, and the end of the last one."""
    lengths = np.concatenate([[sizes.nbytes], sizes])
    return np.cumsum(-(-lengths // _ALIGN) * _ALIGN)


def _is_plain(array: AnyArray) -> bool:
    """Return whether compiled code can use an array in place."""
    return type(array) is np.ndarray and array.flags.carray and array.dtype in kernel.COMPILED


def _slice(count: int, itemsize: int, rank: int, size: int) -> slice:
    """Return a rank's slice, aligned to cache lines: two ranks never write to the same one."""
    line = _ALIGN // itemsize
    lines = -(-count // line)
    edges = [min(count, r * lines // size * line) for r in (rank, rank + 1)]
    return slice(*edges)
