"""Compiled inner loops of the shm backend: waiting on counters, and sums in rank order.

They release the GIL, so that other threads run while a rank waits or sums. The sums do what numpy's
ufuncs do, element by element: no fast-math, no other order.
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
"""Elements summed at a time: they fit in the L1 cache."""


@jit
def store_word(address: int, value: int) -> None:
    """Store a word that other ranks read."""
    store(address, value)


@jit
def load_word(address: int) -> Any:
    """Load a word that other ranks write."""
    return load(address)


@jit
def arrive(line: int, word: int, counter: int, target: int) -> None:
    """Publish this rank's progress and increment the counter; wake the sleepers if it is complete.

    A counter is two words: the count, and the number of ranks that sleep until it is complete.

    Args:
        line: Address of this rank's progress word.
        word: Its new value.
        counter: Address of the counter.
        target: The complete count.
    """
    store(line, word)
    if add(counter, 1) + 1 >= target and load(counter + 8) > 0:
        syscall(FUTEX, counter, _WAKE, _ALL, 0, 0, 0)


@jit
def wake(counter: int) -> None:
    """Wake all ranks that sleep at a counter."""
    syscall(FUTEX, counter, _WAKE, _ALL, 0, 0, 0)


@jit
def wait(counter: int, target: int, bursts: int, limit: int) -> Any:
    """Wait until a count is complete: spin, yield, then sleep once.

    Args:
        counter: Address of the counter.
        target: The complete count.
        bursts: Number of spin-and-yield rounds before sleeping.
        limit: Address of a timespec, the longest sleep.

    Returns:
        Whether it is complete.
    """
    for _ in range(bursts):
        for _ in range(_BURST):
            if load(counter) >= target:
                return True
            relax()
        # With more ranks than cores the missing rank may need this core.
        sched_yield()
    add(counter + 8, 1)
    count = load(counter)
    if count < target:
        # Returns at once if the count has changed since the load.
        syscall(FUTEX, counter, _WAIT, count & _LOW, limit, 0, 0)
    add(counter + 8, -1)
    return load(counter) >= target


@jit
def agree(headers: Any, own: int) -> Any:
    """Return whether all headers name the same collective.

    Args:
        headers: int64 [n], the addresses of the ranks' headers.
        own: The index of this rank's header.
    """
    for r in range(headers.shape[0]):
        for at in range(HEADER_TEXT, HEADER_BYTES, 8):
            if load(headers[r] + at) != load(headers[own] + at):
                return False
    return True


@jit
def begin_small(values: Any, slot: int, line: int, word: int, counter: int, target: int) -> None:
    """Copy a small array into this rank's slot, and `arrive`."""
    copy = carray(pointer(slot, values), values.shape[0])
    for i in range(values.shape[0]):
        copy[i] = values[i]
    arrive(line, word, counter, target)


@jit
def end_small(
    sources: Any, out: Any, averages: bool, line: int, word: int, counter: int, target: int
) -> None:
    """Sum the slots of all ranks in order, divide for an average, and `arrive`.

    Args:
        sources: int64 [n], the addresses of the arrays to sum.
        out: Receives the sum; not one of the sources.
        averages: Whether to divide by the number of sources.
        line: As in `arrive`.
        word: As in `arrive`.
        counter: As in `arrive`.
        target: As in `arrive`.
    """
    _sum_block(sources, 0, out.shape[0], out)
    if averages:
        divisor = out.dtype.type(sources.shape[0])
        for i in range(out.shape[0]):
            out[i] /= divisor
    arrive(line, word, counter, target)


@jit
def total(sources: Any, targets: Any, start: int, stop: int, scratch: Any) -> None:
    """Sum elements [start, stop) of all sources in order, into all targets.

    Args:
        sources: int64 [n], the addresses of the arrays to sum.
        targets: int64 [m], the addresses that receive the sum; may be among the sources.
        start: First element.
        stop: One after the last.
        scratch: [BLOCK] of the elements' dtype, overwritten.
    """
    item = scratch.itemsize
    for begin in range(start, stop, scratch.shape[0]):
        count = min(scratch.shape[0], stop - begin)
        _sum_block(sources, begin * item, count, scratch)
        _copy_block(targets, begin * item, count, scratch)


@jit
def mean(sources: Any, targets: Any, start: int, stop: int, scratch: Any) -> None:
    """Do what `total` does, and divide by the number of sources."""
    item = scratch.itemsize
    divisor = scratch.dtype.type(sources.shape[0])
    for begin in range(start, stop, scratch.shape[0]):
        count = min(scratch.shape[0], stop - begin)
        _sum_block(sources, begin * item, count, scratch)
        for i in range(count):
            scratch[i] /= divisor
        _copy_block(targets, begin * item, count, scratch)


@jit
def _sum_block(sources: Any, offset: int, count: int, scratch: Any) -> None:
    first = carray(pointer(sources[0] + offset, scratch), count)
    if sources.shape[0] == 1:
        for i in range(count):
            scratch[i] = first[i]
        return
    second = carray(pointer(sources[1] + offset, scratch), count)
    for i in range(count):
        scratch[i] = first[i] + second[i]
    for r in range(2, sources.shape[0]):
        other = carray(pointer(sources[r] + offset, scratch), count)
        for i in range(count):
            scratch[i] += other[i]


@jit
def _copy_block(targets: Any, offset: int, count: int, scratch: Any) -> None:
    for r in range(targets.shape[0]):
        target = carray(pointer(targets[r] + offset, scratch), count)
        for i in range(count):
            target[i] = scratch[i]


COMPILED: Final = frozenset(np.dtype(name) for name in ("f4", "f8", "i4", "i8"))
"""Element types that `total` is compiled for; `mean` for the floats among them."""


def warm_up() -> None:
    """Compile everything, or load it from the cache on disk, before other ranks wait for it."""
    memory = np.zeros(8, np.int64)
    address = memory.__array_interface__["data"][0]
    store_word(address, load_word(address))
    arrive(address, 0, address + 16, 1 << 40)
    wake(address)
    wait(address, 0, 1, address)
    addresses = np.array([address], np.int64)
    agree(addresses[:0], 0)
    for dtype in COMPILED:
        scratch = np.zeros(BLOCK, dtype)
        begin_small(scratch[:1], address, address + 8, 0, address + 16, 1 << 40)
        end_small(addresses, scratch[:1], False, address + 8, 0, address + 16, 1 << 40)
        total(addresses, addresses, 0, 1, scratch)
        if dtype.kind == "f":
            mean(addresses, addresses, 0, 1, scratch)
