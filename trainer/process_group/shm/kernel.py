"""Compiled inner loops of the shm backend: meeting at a counter, and sums in rank order.

Without the GIL, so that a rank that waits or sums leaves the interpreter to others. The sums
do what numpy's ufuncs do, element by element: no fast-math, no other order.
"""

from typing import Any, Final

import numpy as np
from numba.np.numpy_support import carray

from gradmesh.engine.kernels.compile import jit
from gradmesh.trainer.process_group.shm.atomic import (
    FUTEX,
    add,
    load,
    pointer,
    relax,
    sched_yield,
    store,
    syscall,
)

_WAIT = 0
_WAKE = 1
_ALL = 1 << 30
_LOW = 0xFFFFFFFF
_BURST = 32

HEADER_TEXT: Final = 16
HEADER_BYTES: Final = 128
"""A rank's header in a slot: two words, then the collective in words, at HEADER_TEXT."""

BLOCK: Final = 2048
"""Elements summed at a time: they stay in the first cache."""


@jit
def put(address: int, value: int) -> None:
    """Store a word that others read."""
    store(address, value)


@jit
def get(address: int) -> Any:
    """Load a word that others write."""
    return load(address)


@jit
def arrive(line: int, word: int, counter: int, target: int) -> None:
    """Say how far we are, and count ourselves; who makes the count complete wakes the others.

    A counter is two words: the count, and how many sleep until it is complete.

    Args:
        line: Address of the word that tells the others how far we are.
        word: What to put there.
        counter: Address of the counter.
        target: What the count is when complete.
    """
    store(line, word)
    if add(counter, 1) + 1 >= target and load(counter + 8) > 0:
        syscall(FUTEX, counter, _WAKE, _ALL, 0, 0, 0)


@jit
def wake(counter: int) -> None:
    """Let all who sleep at a counter look around."""
    syscall(FUTEX, counter, _WAKE, _ALL, 0, 0, 0)


@jit
def wait(counter: int, target: int, bursts: int, limit: int) -> Any:
    """Wait until a count is complete: spin a little, let others run, then sleep.

    Args:
        counter: Address of the counter.
        target: What the count is when complete.
        bursts: How often to spin and let others run before sleeping.
        limit: Address of a timespec, how long to sleep at most.

    Returns:
        Whether it is complete.
    """
    for _ in range(bursts):
        for _ in range(_BURST):
            if load(counter) >= target:
                return True
            relax()
        # With more ranks than cores the one we wait for may need this core.
        sched_yield()
    add(counter + 8, 1)
    count = load(counter)
    if count < target:
        # Returns at once if somebody has come since we looked.
        syscall(FUTEX, counter, _WAIT, count & _LOW, limit, 0, 0)
    add(counter + 8, -1)
    return load(counter) >= target


@jit
def agree(headers: Any, own: int) -> Any:
    """Return whether the collective that each header names is our own.

    Args:
        headers: int64 [n], the addresses of the ranks' headers.
        own: Which of them is ours.
    """
    for r in range(headers.shape[0]):
        for at in range(HEADER_TEXT, HEADER_BYTES, 8):
            if load(headers[r] + at) != load(headers[own] + at):
                return False
    return True


@jit
def begin_small(values: Any, slot: int, line: int, word: int, counter: int, target: int) -> None:
    """Copy a small array into our slot, and `arrive`."""
    copy = carray(pointer(slot, values), values.shape[0])
    for i in range(values.shape[0]):
        copy[i] = values[i]
    arrive(line, word, counter, target)


@jit
def end_small(
    sources: Any, out: Any, averages: bool, line: int, word: int, counter: int, target: int
) -> None:
    """Sum the slots of all ranks in order, divide if wanted, and `arrive`.

    Args:
        sources: int64 [n], the addresses of what is summed.
        out: Receives it; none of the sources.
        averages: Whether to divide by the number of sources.
        line: As in `arrive`.
        word: As in `arrive`.
        counter: As in `arrive`.
        target: As in `arrive`.
    """
    _gather(sources, 0, out.shape[0], out)
    if averages:
        divisor = out.dtype.type(sources.shape[0])
        for i in range(out.shape[0]):
            out[i] /= divisor
    arrive(line, word, counter, target)


@jit
def total(sources: Any, targets: Any, start: int, stop: int, room: Any) -> None:
    """Sum elements [start, stop) of all sources in order, into all targets.

    Args:
        sources: int64 [n], the addresses of what is summed.
        targets: int64 [m], the addresses that receive it; may be among the sources.
        start: First element.
        stop: One after the last.
        room: [BLOCK] of the elements' dtype, overwritten.
    """
    item = room.itemsize
    for begin in range(start, stop, room.shape[0]):
        count = min(room.shape[0], stop - begin)
        _gather(sources, begin * item, count, room)
        _spread(targets, begin * item, count, room)


@jit
def mean(sources: Any, targets: Any, start: int, stop: int, room: Any) -> None:
    """Do what `total` does, and divide by the number of sources."""
    item = room.itemsize
    divisor = room.dtype.type(sources.shape[0])
    for begin in range(start, stop, room.shape[0]):
        count = min(room.shape[0], stop - begin)
        _gather(sources, begin * item, count, room)
        for i in range(count):
            room[i] /= divisor
        _spread(targets, begin * item, count, room)


@jit
def _gather(sources: Any, offset: int, count: int, room: Any) -> None:
    first = carray(pointer(sources[0] + offset, room), count)
    if sources.shape[0] == 1:
        for i in range(count):
            room[i] = first[i]
        return
    second = carray(pointer(sources[1] + offset, room), count)
    for i in range(count):
        room[i] = first[i] + second[i]
    for r in range(2, sources.shape[0]):
        other = carray(pointer(sources[r] + offset, room), count)
        for i in range(count):
            room[i] += other[i]


@jit
def _spread(targets: Any, offset: int, count: int, room: Any) -> None:
    for r in range(targets.shape[0]):
        target = carray(pointer(targets[r] + offset, room), count)
        for i in range(count):
            target[i] = room[i]


COMPILED: Final = frozenset(np.dtype(name) for name in ("f4", "f8", "i4", "i8"))
"""Element types that `total` is compiled for; `mean` for the floats among them."""


def warm_up() -> None:
    """Compile everything, or take it from the cache on disk, before anybody waits for us."""
    memory = np.zeros(8, np.int64)
    address = memory.__array_interface__["data"][0]
    put(address, get(address))
    arrive(address, 0, address + 16, 1 << 40)
    wake(address)
    wait(address, 0, 1, address)
    nobody = np.array([address], np.int64)
    agree(nobody[:0], 0)
    for dtype in COMPILED:
        room = np.zeros(BLOCK, dtype)
        begin_small(room[:1], address, address + 8, 0, address + 16, 1 << 40)
        end_small(nobody, room[:1], False, address + 8, 0, address + 16, 1 << 40)
        total(nobody, nobody, 0, 1, room)
        if dtype.kind == "f":
            mean(nobody, nobody, 0, 1, room)
