"""Where the ranks of one host meet: counters, headers and small payloads in shared memory.

Every collective has a number, the same on all ranks, and takes the slot `number % SLOTS`:

    begin    a rank writes its header into the slot and counts itself as arrived
    meet     all have arrived: headers are compared, memory of the others may be used
    finish   a rank counts itself as finished: it no longer uses memory of the others

A slot is free again when all have finished with it. Counters lie in rank 0's memory, all else in
that of the rank it belongs to.
"""

import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, final

import numpy as np

from gradmesh.trainer.errors import CollectiveMismatch, CollectiveTimeout
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.message import MessageKind, shutdown_error
from gradmesh.trainer.process_group.process_group import AnyArray
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.memory import SharedHeap, SharedMemory

SLOTS: Final = 8
SMALL_BYTES: Final = 32 * 1024
"""Arrays up to this travel in a slot."""

_PLACE = struct.Struct("<qq")
_COUNTER_BYTES = 128
_LINE = 4096
_HEADERS = 8192
_SMALL = 16384
_HEAP = _SMALL + SLOTS * SMALL_BYTES

_ARRIVED, _FINISHED, _LEFT, _ABOUT = 0, 8, 16, 24
_PHASES = (_ARRIVED, _FINISHED)
# How long a rank sleeps before it looks whether the others still live.
_SLICE_S = 0.02
# About 100 µs: who sleeps is woken late and on a core of the kernel's choice. But with more ranks
# than cores the one that we wait for needs ours.
_BURSTS = 200
_BURSTS_CROWDED = 10


@final
class MemoryRange(NamedTuple):
    """Where a rank's part of a collective lies in its memory."""

    offset: int
    nbytes: int


@final
class SlotRing:
    """The ranks of one host, of which this process is `rank`. One thread at a time.

    Args:
        rank: This process's rank.
        memories: Every rank's memory, as mapped here.
        latch: Ends a wait early when it trips.
        look: Raises if the given rank is known to be gone.
        names: Where each rank is, for errors.
        ranks: What errors call each rank, if the team is a part of a group.
    """

    def __init__(
        self,
        rank: int,
        memories: Sequence[SharedMemory],
        latch: AbortSignal,
        look: Callable[[int], None],
        names: Sequence[str],
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.size = len(memories)
        self.memories = memories
        self.heap = SharedHeap(memories[rank], _HEAP)
        self._latch = latch
        self._look = look
        self._names = names
        self._ranks = ranks if ranks is not None else range(len(memories))
        self._number = -1
        self._own = memories[rank]
        self._line = self._own.address + _LINE
        self._limit = np.array([0, int(_SLICE_S * 1e9)], np.int64)
        self._limit_at: int = self._limit.__array_interface__["data"][0]
        is_crowded = self.size > len(os.sched_getaffinity(0))
        self._bursts = _BURSTS_CROWDED if is_crowded else _BURSTS
        counters = [memories[0].address + s * _COUNTER_BYTES for s in range(SLOTS)]
        self._counters = {phase: [c + phase * 8 for c in counters] for phase in _PHASES}
        at = [memory.address for memory in memories]
        self._small = [np.array([a + self.small(s) for a in at], np.int64) for s in range(SLOTS)]
        self._headers = [np.array([a + _header(s) for a in at], np.int64) for s in range(SLOTS)]

    @staticmethod
    def small(number: int) -> int:
        """Return where the small payload of a collective lies in each rank's memory."""
        return _SMALL + number % SLOTS * SMALL_BYTES

    def next_number(self) -> int | None:
        """Return the number that the next `begin` gets, None while its slot is in use."""
        number = self._number + 1
        if number >= SLOTS:
            counter, target = self._counter(number - SLOTS, _FINISHED)
            if kernel.get(counter) < target:
                return None
        return number

    def wait_for_slot(self, deadline: float) -> int:
        """Return the number that the next `begin` gets, once its slot is free."""
        number = self._number + 1
        if number >= SLOTS:
            self._wait(number - SLOTS, _FINISHED, "a former collective", deadline)
        return number

    def begin(self, text: str, offset: int, nbytes: int) -> int:
        """Tell the others what we bring to the next collective; return its number."""
        number = self._name(text)
        _PLACE.pack_into(self._own.map, _header(number), offset, nbytes)
        counter, target = self._counter(number, _ARRIVED)
        kernel.arrive(self._line + _ARRIVED, number + 1, counter, target)
        return number

    def begin_small(self, text: str, values: AnyArray) -> int:
        """Do what `begin` does, with values [n] of a compiled type in our slot."""
        number = self._name(text)
        slot = self._own.address + self.small(number)
        counter, target = self._counter(number, _ARRIVED)
        kernel.begin_small(values, slot, self._line + _ARRIVED, number + 1, counter, target)
        return number

    def meet(self, number: int, text: str, deadline: float) -> None:
        """Wait until all have begun.

        Raises:
            CollectiveTimeout: Some did not come; names them.
            PeerLost: A rank is gone.
            CollectiveMismatch: Ranks have begun different collectives.
        """
        self._wait(number, _ARRIVED, text, deadline)
        if not kernel.agree(self._headers[number % SLOTS], self.rank):
            at = _header(number)
            text_at = slice(at + kernel.HEADER_TEXT, at + kernel.HEADER_BYTES)
            raise _mismatch(self._ranks, [memory.map[text_at] for memory in self.memories])

    def places(self, number: int) -> list[MemoryRange]:
        """Return where everybody's part lies, once they have met."""
        at = _header(number)
        return [MemoryRange(*_PLACE.unpack_from(memory.map, at)) for memory in self.memories]

    def finish(self, number: int) -> None:
        """Say that we no longer use memory of the others."""
        counter, target = self._counter(number, _FINISHED)
        kernel.arrive(self._line + _FINISHED, number + 1, counter, target)

    def finish_small(self, number: int, out: AnyArray, averages: bool) -> None:
        """Sum what `begin_small` has left in everybody's slot, and do what `finish` does."""
        sources = self._small[number % SLOTS]
        counter, target = self._counter(number, _FINISHED)
        kernel.end_small(
            sources, out, averages, self._line + _FINISHED, number + 1, counter, target
        )

    def wait_for_all(self, number: int, text: str, deadline: float) -> None:
        """Wait until all have finished; raises as `meet` does."""
        self._wait(number, _FINISHED, text, deadline)

    def leave(self, kind: MessageKind, about: int) -> None:
        """Tell the others why we come no more."""
        kernel.put(self._line + _ABOUT, about)
        kernel.put(self._line + _LEFT, kind)
        self.interrupt()

    def interrupt(self) -> None:
        """Let all who sleep look around."""
        for counters in self._counters.values():
            for counter in counters:
                kernel.wake(counter)

    def _name(self, text: str) -> int:
        """Write what the next collective is into our header; return its number."""
        number = self._number = self._number + 1
        at = _header(number)
        words = _padded(text)
        self._own.map[at + kernel.HEADER_TEXT : at + kernel.HEADER_BYTES] = words
        return number

    def _counter(self, number: int, phase: int) -> tuple[int, int]:
        """Return the counter of a phase of a collective, and what it is when all have counted."""
        return self._counters[phase][number % SLOTS], self.size * (number // SLOTS + 1)

    def _wait(self, number: int, phase: int, text: str, deadline: float) -> None:
        counter, target = self._counter(number, phase)
        bursts = self._bursts
        while not kernel.wait(counter, target, bursts, self._limit_at):
            bursts = 0
            self._latch.check()
            # One that has come and left again would be missed later.
            for rank in self._missing(number, _FINISHED):
                if rank != self.rank:
                    self._check(rank)
            if time.monotonic() >= deadline:
                raise self._timed_out(text, self._missing(number, phase))

    def _missing(self, number: int, phase: int) -> list[int]:
        lines = [memory.address + _LINE + phase for memory in self.memories]
        return [rank for rank, line in enumerate(lines) if kernel.get(line) <= number]

    def _check(self, rank: int) -> None:
        """Raise if another rank has left."""
        line = self.memories[rank].address + _LINE
        kind = kernel.get(line + _LEFT)
        if kind:
            about = kernel.get(line + _ABOUT)
            raise shutdown_error(MessageKind(kind), about, self._ranks[rank], self._names[rank])
        self._look(rank)

    def _timed_out(self, text: str, missing: Sequence[int]) -> CollectiveTimeout:
        names = ", ".join(f"rank {self._ranks[r]} ({self._names[r]})" for r in missing)
        return CollectiveTimeout(
            f"{text} timed out waiting for {names}; see whether it still runs, or raise the"
            " group's timeout, then rejoin",
            ranks=[self._ranks[rank] for rank in missing],
        )


def _header(number: int) -> int:
    """Return where the header of a collective lies in each rank's memory."""
    return _HEADERS + number % SLOTS * kernel.HEADER_BYTES


@lru_cache(maxsize=1024)
def _padded(text: str) -> bytes:
    """Return a collective in words as a header holds it, cut to what fits."""
    room = kernel.HEADER_BYTES - kernel.HEADER_TEXT
    return text.encode("ascii", "replace")[:room].ljust(room, b"\0")


def _mismatch(ranks: Sequence[int], texts: Sequence[bytes]) -> CollectiveMismatch:
    called: dict[str, list[int]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        called.setdefault(text.rstrip(b"\0").decode("ascii", "replace"), []).append(rank)
    said = "; ".join(f"rank {', '.join(map(str, who))}: {t}" for t, who in called.items())
    return CollectiveMismatch(
        f"ranks called different collectives ({said}); all ranks must call the same"
        " collectives in the same order"
    )
