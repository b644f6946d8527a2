"""Synchronise the ranks of one host by a ring of slots in shared memory.

Every collective has a number, the same on all ranks, and uses the slot `number % SLOTS`:

    begin    write this rank's header into the slot and increment the count of arrived ranks
    meet     wait until all have arrived, compare headers; now memory of the others can be used
    finish   increment the count of finished ranks: this rank no longer uses the others' memory

A slot is free again when all ranks have finished. Counters are in rank 0's memory; headers,
progress words and small payloads are in that of their rank.
"""

import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, final

import numpy as np

from gradmesh.protos.printable import printable
from gradmesh.trainer.errors import CollectiveMismatch, CollectiveTimeout
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.message import MessageKind, shutdown_error
from gradmesh.trainer.process_group.process_group import AnyArray
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.memory import SharedHeap, SharedMemory

SLOTS: Final = 8
SMALL_BYTES: Final = 32 * 1024
"""Arrays up to this size are copied into a slot."""

_RANGE = struct.Struct("<qq")
_COUNTER_BYTES = 128
_PROGRESS = 4096
_HEADERS = 8192
_SMALL = 16384
_HEAP = _SMALL + SLOTS * SMALL_BYTES

_ARRIVED, _FINISHED, _LEFT, _ABOUT = 0, 8, 16, 24
_PHASES = (_ARRIVED, _FINISHED)
# How long a rank sleeps before it checks whether the others are alive.
_SLEEP_S = 0.02
# Spin about 100 µs: a sleeping rank is woken late, and on a core of the kernel's choice. But with
# more ranks than cores the missing rank needs this core.
_BURSTS = 200
_BURSTS_CROWDED = 10


@final
class MemoryRange(NamedTuple):
    """The range of a rank's array in its memory."""

    offset: int
    nbytes: int


@final
class SlotRing:
    """Synchronise this process, as `rank`, with the other ranks of the host. One thread at a time.

    Args:
        rank: This process's rank.
        memories: Every rank's memory, mapped into this process.
        abort_signal: Ends a wait early when it is set.
        check_alive: Raises if the given rank is known to be gone.
        names: Address of each rank, for errors.
        ranks: The ranks in the whole group, for errors, if the host has only some of them.
    """

    def __init__(
        self,
        rank: int,
        memories: Sequence[SharedMemory],
        abort_signal: AbortSignal,
        check_alive: Callable[[int], None],
        names: Sequence[str],
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.size = len(memories)
        self.memories = memories
        self.heap = SharedHeap(memories[rank], _HEAP)
        self._abort_signal = abort_signal
        self._check_alive = check_alive
        self._names = names
        self._ranks = ranks if ranks is not None else range(len(memories))
        self._number = -1
        self._own = memories[rank]
        self._progress = self._own.address + _PROGRESS
        self._limit = np.array([0, int(_SLEEP_S * 1e9)], np.int64)
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
        """Return the offset of a collective's small payload in each rank's memory."""
        return _SMALL + number % SLOTS * SMALL_BYTES

    def next_number(self) -> int | None:
        """Return the number of the next `begin`, None while its slot is in use."""
        number = self._number + 1
        if number >= SLOTS:
            counter, target = self._counter(number - SLOTS, _FINISHED)
            if kernel.load_word(counter) < target:
                return None
        return number

    def wait_for_slot(self, deadline: float) -> int:
        """Return the number of the next `begin`, once its slot is free."""
        number = self._number + 1
        if number >= SLOTS:
            self._wait(number - SLOTS, _FINISHED, "an earlier collective", deadline)
        return number

    def begin(self, text: str, offset: int, nbytes: int) -> int:
        """Publish this rank's array for the next collective; return its number."""
        number = self._write_header(text)
        _RANGE.pack_into(self._own.map, _header(number), offset, nbytes)
        counter, target = self._counter(number, _ARRIVED)
        kernel.arrive(self._progress + _ARRIVED, number + 1, counter, target)
        return number

    def begin_small(self, text: str, values: AnyArray) -> int:
        """Do what `begin` does, with values [n] of a compiled dtype copied into the slot."""
        number = self._write_header(text)
        slot = self._own.address + self.small(number)
        counter, target = self._counter(number, _ARRIVED)
        kernel.begin_small(values, slot, self._progress + _ARRIVED, number + 1, counter, target)
        return number

    def meet(self, number: int, text: str, deadline: float) -> None:
        """Wait until all have begun.

        Raises:
            CollectiveTimeout: Some ranks did not arrive; names them.
            PeerLost: A rank is gone.
            CollectiveMismatch: Ranks have begun different collectives.
        """
        self._wait(number, _ARRIVED, text, deadline)
        if not kernel.agree(self._headers[number % SLOTS], self.rank):
            at = _header(number)
            text_at = slice(at + kernel.HEADER_TEXT, at + kernel.HEADER_BYTES)
            raise _mismatch(self._ranks, [memory.map[text_at] for memory in self.memories])

    def ranges(self, number: int) -> list[MemoryRange]:
        """Return the range of every rank's array, after `meet`."""
        at = _header(number)
        return [MemoryRange(*_RANGE.unpack_from(memory.map, at)) for memory in self.memories]

    def finish(self, number: int) -> None:
        """Publish that this rank no longer uses the others' memory."""
        counter, target = self._counter(number, _FINISHED)
        kernel.arrive(self._progress + _FINISHED, number + 1, counter, target)

    def finish_small(self, number: int, out: AnyArray, averages: bool) -> None:
        """Sum the values that `begin_small` has put into all slots, and do what `finish` does."""
        sources = self._small[number % SLOTS]
        counter, target = self._counter(number, _FINISHED)
        kernel.end_small(
            sources, out, averages, self._progress + _FINISHED, number + 1, counter, target
        )

    def wait_for_all(self, number: int, text: str, deadline: float) -> None:
        """Wait until all have finished; raises as `meet` does."""
        self._wait(number, _FINISHED, text, deadline)

    def leave(self, kind: MessageKind, about: int) -> None:
        """Publish the reason why this rank leaves, and wake the others."""
        kernel.store_word(self._progress + _ABOUT, about)
        # As a plain int: numba stores argument types by module name in its cache on disk.
        kernel.store_word(self._progress + _LEFT, int(kind))
        self.interrupt()

    def interrupt(self) -> None:
        """Wake all sleeping ranks, so that they check for an abort."""
        for counters in self._counters.values():
            for counter in counters:
                kernel.wake(counter)

    def _write_header(self, text: str) -> int:
        """Write the text of the next collective into this rank's header; return its number."""
        number = self._number = self._number + 1
        at = _header(number)
        self._own.map[at + kernel.HEADER_TEXT : at + kernel.HEADER_BYTES] = _padded(text)
        return number

    def _counter(self, number: int, phase: int) -> tuple[int, int]:
        """Return the counter of a phase of a collective, and its complete count."""
        return self._counters[phase][number % SLOTS], self.size * (number // SLOTS + 1)

    def _wait(self, number: int, phase: int, text: str, deadline: float) -> None:
        counter, target = self._counter(number, phase)
        bursts = self._bursts
        while not kernel.wait(counter, target, bursts, self._limit_at):
            bursts = 0
            self._abort_signal.raise_if_set()
            # A rank that has arrived and left since would be missed later.
            for rank in self._missing(number, _FINISHED):
                if rank != self.rank:
                    self._check(rank)
            if time.monotonic() >= deadline:
                raise self._timed_out(text, self._missing(number, phase))

    def _missing(self, number: int, phase: int) -> list[int]:
        words = [memory.address + _PROGRESS + phase for memory in self.memories]
        return [rank for rank, word in enumerate(words) if kernel.load_word(word) <= number]

    def _check(self, rank: int) -> None:
        """Raise if another rank has left."""
        progress = self.memories[rank].address + _PROGRESS
        kind = kernel.load_word(progress + _LEFT)
        if kind:
            about = kernel.load_word(progress + _ABOUT)
            raise shutdown_error(MessageKind(kind), about, self._ranks[rank], self._names[rank])
        self._check_alive(rank)

    def _timed_out(self, text: str, missing: Sequence[int]) -> CollectiveTimeout:
        names = ", ".join(f"rank {self._ranks[r]} ({self._names[r]})" for r in missing)
        return CollectiveTimeout(
            f"{text} timed out waiting for {names}; see whether it still runs, or raise the"
            " group's timeout, then rejoin",
            ranks=[self._ranks[rank] for rank in missing],
        )


def _header(number: int) -> int:
    """Return the offset of a collective's header in each rank's memory."""
    return _HEADERS + number % SLOTS * kernel.HEADER_BYTES


@lru_cache(maxsize=1024)
def _padded(text: str) -> bytes:
    """Return the text of a collective padded or truncated to a header's size."""
    nbytes = kernel.HEADER_BYTES - kernel.HEADER_TEXT
    return text.encode("ascii", "replace")[:nbytes].ljust(nbytes, b"\0")


def _mismatch(ranks: Sequence[int], texts: Sequence[bytes]) -> CollectiveMismatch:
    called: dict[str, list[int]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        shown = printable(text.rstrip(b"\0").decode("ascii", "replace"))
        called.setdefault(shown, []).append(rank)
    calls = "; ".join(f"rank {', '.join(map(str, who))}: {t}" for t, who in called.items())
    return CollectiveMismatch(
        f"ranks called different collectives ({calls}); all ranks must call the same"
        " collectives in the same order"
    )
