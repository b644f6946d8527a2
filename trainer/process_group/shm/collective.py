"""The collectives of one host: ranks read and write one another's memory.

All-reduce of big arrays: each rank sums its slice of everybody's memory, in rank order, and writes
it back to everybody: one pass, no copy. Arrays outside the shared memory are copied in and out.
Small ones are copied into a slot at the call; whoever waits sums all of them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import numpy as np

from gradmesh.engine.backend import view_of
from gradmesh.trainer.errors import CollectiveMismatch
from gradmesh.trainer.process_group.collective import Collectives, Continuation, PeerTransport
from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp
from gradmesh.trainer.process_group.reduction import reduce_in_order
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.slot_ring import SMALL_BYTES, MemoryRange, SlotRing

_ALIGN = 64
_NOWHERE = 0
# The others would need numpy's own rules for NaN and half precision over again.
_COMPILED_OPS = ("sum", "avg")


@final
class SharedCollectives(Collectives):
    """What a rank does in each collective, in shared memory. One thread at a time.

    Args:
        team: The ranks.
        round_: Moves messages between two ranks.
        count: Told how many bytes crossed between ranks.
    """

    def __init__(self, team: SlotRing, round_: PeerTransport, count: Callable[[int], None]) -> None:
        super().__init__(team.rank, team.size, round_)
        self._team = team
        self._count = count
        self._stage = np.empty(0, np.uint8)
        self._rooms = {dtype: np.empty(kernel.BLOCK, dtype) for dtype in kernel.COMPILED}

    def begin_all_reduce(self, text: str, array: AnyArray, op: ReduceOp) -> Continuation | None:
        """Put a small array into its slot, if that is free."""
        if array.nbytes > SMALL_BYTES or self._team.next_number() is None:
            return None
        return partial(self._sum_small, text, array, op, self._begin_small(text, array))

    def begin_barrier(self, text: str) -> Continuation | None:
        """Count ourselves, if the slot is free."""
        if self._team.next_number() is None:
            return None
        return partial(self._end_barrier, text, self._team.begin(text, _NOWHERE, 0))

    def needs_thread(self) -> bool:
        """Return False: what has begun lies where the peers see it."""
        return False

    def barrier(self, text: str, deadline: float) -> None:
        """Hear of every peer."""
        self._team.wait_for_slot(deadline)
        self._end_barrier(text, self._team.begin(text, _NOWHERE, 0), deadline)

    def _end_barrier(self, text: str, number: int, deadline: float) -> None:
        self._team.meet(number, text, deadline)
        self._team.finish(number)

    def all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        """Combine `array` in place."""
        if array.nbytes <= SMALL_BYTES:
            self._team.wait_for_slot(deadline)
            self._sum_small(text, array, op, self._begin_small(text, array), deadline)
            return
        offset = self._team.memories[self._rank].offset_of(array)
        stage = None
        if offset < 0:
            stage = view_of(self._staged(array.nbytes).view(array.dtype), array.shape)
            stage[...] = array
            offset = self._offset(stage)
        self._with_all(
            text,
            offset,
            array.nbytes,
            lambda places: self._sum_slice(places, array, op),
            deadline,
        )
        if stage is not None:
            array[...] = stage
        self._count(4 * (self._size - 1) * array.nbytes // self._size)

    def reduce_scatter(
        self, text: str, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp, deadline: float
    ) -> None:
        """Combine everybody's `inputs[rank]` into `output`."""

        def reduce(places: Sequence[MemoryRange]) -> None:
            parts = [self._unpack(places, r, self._rank, output) for r in range(self._size)]
            total = parts[0].copy()
            reduce_in_order([total, *parts[1:]], op, out=total)
            output[...] = total

        self._with_all(text, *self._pack(inputs), reduce, deadline)

    def broadcast(self, text: str, array: AnyArray, root: int, deadline: float) -> None:
        """Copy the root's `array` to all."""
        offset = _NOWHERE
        if self._rank == root:
            offset = self._team.memories[self._rank].offset_of(array)
            if offset < 0:
                offset = self._pack_one(array)

        def take(places: Sequence[MemoryRange]) -> None:
            if self._rank != root:
                array[...] = self._peer(root, places[root], array)

        self._with_all(text, offset, array.nbytes, take, deadline)

    def all_gather(
        self, text: str, outputs: Sequence[AnyArray], array: AnyArray, deadline: float
    ) -> None:
        """Copy everybody's `array` to all."""
        offset = self._team.memories[self._rank].offset_of(array)
        if offset < 0:
            offset = self._pack_one(array)

        def take(places: Sequence[MemoryRange]) -> None:
            for r in self._peers:
                outputs[r][...] = self._peer(r, places[r], outputs[r])

        self._with_all(text, offset, array.nbytes, take, deadline)
        outputs[self._rank][...] = array

    def all_to_all(
        self, text: str, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray], deadline: float
    ) -> None:
        """Copy a part to each, and take one from each."""

        def take(places: Sequence[MemoryRange]) -> None:
            for r in range(self._size):
                outputs[r][...] = self._unpack(places, r, self._rank, outputs[r])

        self._with_all(text, *self._pack(inputs), take, deadline)

    def gather(
        self,
        text: str,
        outputs: Sequence[AnyArray] | None,
        array: AnyArray,
        root: int,
        deadline: float,
    ) -> None:
        """Copy everybody's `array` to the root."""

        def take(places: Sequence[MemoryRange]) -> None:
            if outputs is not None and self._rank == root:
                for r in range(self._size):
                    outputs[r][...] = self._peer(r, places[r], outputs[r])

        self._with_all(text, self._pack_one(array), array.nbytes, take, deadline)

    def scatter(
        self,
        text: str,
        array: AnyArray,
        inputs: Sequence[AnyArray] | None,
        root: int,
        deadline: float,
    ) -> None:
        """Copy each rank's share from the root."""
        place = MemoryRange(_NOWHERE, 0)
        if inputs is not None and self._rank == root:
            place = self._pack(inputs)

        def take(places: Sequence[MemoryRange]) -> None:
            array[...] = self._unpack(places, root, self._rank, array)

        self._with_all(text, *place, take, deadline)

    def _with_all(
        self,
        text: str,
        offset: int,
        nbytes: int,
        act: Callable[[Sequence[MemoryRange]], None],
        deadline: float,
    ) -> None:
        """Act while everybody's memory is there to read, and wait until all have acted."""
        self._team.wait_for_slot(deadline)
        number = self._team.begin(text, offset, nbytes)
        self._team.meet(number, text, deadline)
        act(self._team.places(number))
        self._team.finish(number)
        self._team.wait_for_all(number, text, deadline)

    def _begin_small(self, text: str, array: AnyArray) -> int:
        if _is_plain(array):
            return self._team.begin_small(text, array.reshape(-1))
        # The slot of the number that `begin` gives next.
        number = self._team.next_number()
        assert number is not None
        offset = self._team.small(number)
        own = self._team.memories[self._rank]
        own.array(offset, array.shape, array.dtype)[...] = array
        return self._team.begin(text, offset, array.nbytes)

    def _sum_small(
        self, text: str, array: AnyArray, op: ReduceOp, number: int, deadline: float
    ) -> None:
        self._team.meet(number, text, deadline)
        if op in _COMPILED_OPS and _is_plain(array):
            self._team.finish_small(number, array.reshape(-1), op == "avg")
        else:
            offset = self._team.small(number)
            parts = [m.array(offset, array.shape, array.dtype) for m in self._team.memories]
            total = parts[0].copy()
            reduce_in_order([total, *parts[1:]], op, out=total)
            array[...] = total
            self._team.finish(number)
        self._count(2 * (self._size - 1) * array.nbytes)

    def _sum_slice(self, places: Sequence[MemoryRange], array: AnyArray, op: ReduceOp) -> None:
        """Sum our slice of everybody's array, into everybody's."""
        cut = _slice(array.size, array.dtype.itemsize, self._rank, self._size)
        memories = self._team.memories
        if array.dtype in kernel.COMPILED and op in _COMPILED_OPS:
            at = [m.address + place.offset for m, place in zip(memories, places, strict=True)]
            addresses = np.array(at, np.int64)
            room = self._rooms[array.dtype]
            reduce = kernel.mean if op == "avg" else kernel.total
            reduce(addresses, addresses, cut.start, cut.stop, room)
            return
        parts = [
            m.array(place.offset, array.size, array.dtype)[cut]
            for m, place in zip(memories, places, strict=True)
        ]
        reduce_in_order(parts, op, out=parts[self._rank])
        for r in self._peers:
            parts[r][...] = parts[self._rank]

    def _peer(self, rank: int, place: MemoryRange, like: AnyArray) -> AnyArray:
        """Return a rank's part as an array, after checking that it has the size we expect."""
        if place.nbytes != like.nbytes:
            raise _other_size(rank, place.nbytes, like.nbytes)
        return self._team.memories[rank].array(place.offset, like.shape, like.dtype)

    def _staged(self, nbytes: int) -> AnyArray:
        """Return shared scratch memory that lives until the next call."""
        if self._stage.size < nbytes:
            self._stage = np.empty(0, np.uint8)
            self._stage = self._team.heap.empty(nbytes, np.uint8)
        return self._stage[:nbytes]

    def _offset(self, array: AnyArray) -> int:
        offset = self._team.memories[self._rank].offset_of(array)
        if offset < 0:
            raise MemoryError(f"no shared memory is left for {array.nbytes} bytes")
        return offset

    def _pack_one(self, array: AnyArray) -> int:
        """Copy an array to scratch memory; return where that is."""
        stage = self._staged(max(array.nbytes, 1))[: array.nbytes]
        view_of(stage.view(array.dtype), array.shape)[...] = array
        return self._offset(stage)

    def _pack(self, arrays: Sequence[AnyArray]) -> MemoryRange:
        """Copy one array for each rank to scratch memory, behind a table of their sizes."""
        sizes = np.array([array.nbytes for array in arrays], np.int64)
        starts = _starts(sizes)
        stage = self._staged(int(starts[-1]))
        stage[: sizes.nbytes].view(np.int64)[...] = sizes
        for start, array in zip(starts, arrays, strict=False):
            part = stage[start : start + array.nbytes]
            view_of(part.view(array.dtype), array.shape)[...] = array
        return MemoryRange(self._offset(stage), stage.nbytes)

    def _unpack(
        self, places: Sequence[MemoryRange], rank: int, index: int, like: AnyArray
    ) -> AnyArray:
        """Return the part for rank `index` of what a rank packed."""
        memory, offset = self._team.memories[rank], places[rank].offset
        sizes = memory.array(offset, self._size, np.int64)
        if sizes[index] != like.nbytes:
            raise _other_size(rank, int(sizes[index]), like.nbytes)
        start = int(_starts(sizes)[index])
        return memory.array(offset + start, like.shape, like.dtype)


def _starts(sizes: AnyArray) -> AnyArray:
    """Return where each part begins, and where the last one ends."""
    lengths = np.concatenate([[sizes.nbytes], sizes])
    return np.cumsum(-(-lengths // _ALIGN) * _ALIGN)


def _is_plain(array: AnyArray) -> bool:
    """Return whether compiled code can take the values of an array as they lie."""
    return type(array) is np.ndarray and array.flags.carray and array.dtype in kernel.COMPILED


def _slice(count: int, itemsize: int, rank: int, size: int) -> slice:
    """Return a rank's slice, cut where cache lines are: two ranks never write to one."""
    line = _ALIGN // itemsize
    lines = -(-count // line)
    edges = [min(count, r * lines // size * line) for r in (rank, rank + 1)]
    return slice(*edges)


def _other_size(rank: int, nbytes: int, expected: int) -> CollectiveMismatch:
    return CollectiveMismatch(
        f"rank {rank} brings {nbytes} bytes, this rank expects {expected}; all ranks must call"
        " the same collectives with the same shapes"
    )
