"""Collectives of host arrays, built from one primitive: an exchange of bytes between ranks.

All-reduce of big arrays: every rank receives its slice from all others, reduces it in rank order
and sends the result to all, chunk by chunk. Of small arrays: every rank sends all of it to every
rank, and each reduces all, in one exchange instead of two. Both give the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp
from gradmesh.trainer.process_group.reduction import reduce_in_order, slices

ONE_EXCHANGE_BYTES = 16 * 1024
"""Arrays up to this size are sent whole from every rank to every rank."""
_CHUNK_BYTES = 1 << 20
_NOTHING = (memoryview(bytearray()),)

Continuation: TypeAlias = Callable[[float], None]
"""The rest of a collective that has begun; takes the deadline."""

Segments: TypeAlias = Sequence[memoryview]
"""The bytes sent from one rank to another in one exchange: pieces of memory, in order."""


class PeerTransport(Protocol):
    """Exchange bytes between this rank and its peers, one exchange after another.

    `text` is the collective in words: if peers pass another one, all raise
    CollectiveMismatch.
    """

    def is_idle(self) -> bool:
        """Return whether no exchange is under way."""

    def begin(
        self, text: str, outgoing: Mapping[int, Segments], incoming: Mapping[int, Segments]
    ) -> None:
        """Start to send `outgoing`, without waiting; `incoming` is filled by `finish`."""

    def has_sent(self) -> bool:
        """Return whether all of `outgoing` has been sent."""

    def finish(self, deadline: float) -> None:
        """Wait until the exchange has finished."""


class Collectives:
    """Run each collective as rank `rank` of `size`. One thread at a time.

    Args:
        rank: This process's rank.
        size: Number of ranks.
        transport: Exchanges bytes with the peers.
    """

    def __init__(self, rank: int, size: int, transport: PeerTransport) -> None:
        self._rank = rank
        self._size = size
        self._peers = [peer for peer in range(size) if peer != rank]
        self._transport = transport
        self._scratch = np.empty(0, np.uint8)

    def begin_all_reduce(self, text: str, array: AnyArray, op: ReduceOp) -> Continuation | None:
        """Start without waiting, if possible: send what the peers need.

        Returns the rest, to be run by the thread that waits; None if nothing was started.
        """
        if array.nbytes > ONE_EXCHANGE_BYTES or not self._transport.is_idle():
            return None
        flat = flatten(array)
        contributions = self._begin_reduce(text, [flat] * self._size, flat)
        return partial(self._finish_small, array, flat, contributions, op)

    def begin_barrier(self, text: str) -> Continuation | None:
        """Start as begin_all_reduce does."""
        if not self._transport.is_idle():
            return None
        nothing = dict.fromkeys(self._peers, _NOTHING)
        self._transport.begin(text, nothing, nothing)
        return self._transport.finish

    def needs_thread(self) -> bool:
        """Return whether the peers still need data of a collective that has begun."""
        return not self._transport.has_sent()

    def all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        """Combine `array` in place."""
        flat = flatten(array)
        if flat.nbytes <= ONE_EXCHANGE_BYTES:
            contributions = self._begin_reduce(text, [flat] * self._size, flat)
            self._finish_small(array, flat, contributions, op, deadline)
            return
        self._all_reduce_in_chunks(text, flat, op, deadline)
        put_back(flat, array)

    def _finish_small(
        self,
        array: AnyArray,
        flat: AnyArray,
        contributions: Sequence[AnyArray],
        op: ReduceOp,
        deadline: float,
    ) -> None:
        self._transport.finish(deadline)
        reduce_in_order(contributions, op, out=flat)
        put_back(flat, array)

    def _all_reduce_in_chunks(
        self, text: str, flat: AnyArray, op: ReduceOp, deadline: float
    ) -> None:
        """Reduce a chunk of this rank's slice while it is cached; send it with the next one."""
        parts = [flat[cut] for cut in slices(flat.size, self._size)]
        own = parts[self._rank]
        step = max(1, _CHUNK_BYTES // flat.itemsize)
        longest = max(part.size for part in parts)
        scratch = self._borrow(min(step, own.size) * flat.itemsize * len(self._peers))
        done = slice(0, 0)
        for start in range(0, longest + step, step):
            cut = slice(start, start + step)
            mine = own[cut]
            rows = scratch[: mine.nbytes * len(self._peers)].view(flat.dtype)
            received = iter(rows.reshape(len(self._peers), mine.size))
            chunks = [mine if r == self._rank else next(received) for r in range(self._size)]
            result = as_bytes(own[done])
            self._run(
                text,
                {r: (as_bytes(parts[r][cut]), result) for r in self._peers},
                {r: (as_bytes(chunks[r]), as_bytes(parts[r][done])) for r in self._peers},
                deadline,
            )
            reduce_in_order(chunks, op, out=mine)
            done = cut

    def reduce_scatter(
        self, text: str, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp, deadline: float
    ) -> None:
        """Combine `inputs[rank]` of all ranks into `output`."""
        flat = np.array(inputs[self._rank]).reshape(-1)
        parts = [flat if r == self._rank else flatten(inputs[r]) for r in range(self._size)]
        contributions = self._begin_reduce(text, parts, flat)
        self._transport.finish(deadline)
        reduce_in_order(contributions, op, out=flat)
        output[...] = flat.reshape(output.shape)

    def _begin_reduce(
        self, text: str, parts: Sequence[AnyArray], own: AnyArray
    ) -> Sequence[AnyArray]:
        """Start to send each peer its part; return the contributions to reduce."""
        received = self._borrow(own.nbytes * len(self._peers)).view(own.dtype)
        rows = iter(received.reshape(len(self._peers), own.size))
        contributions = [own if r == self._rank else next(rows) for r in range(self._size)]
        outgoing = {r: (as_bytes(parts[r]),) for r in self._peers}
        incoming = {r: (as_bytes(contributions[r]),) for r in self._peers}
        self._transport.begin(text, outgoing, incoming)
        return contributions

    def broadcast(self, text: str, array: AnyArray, root: int, deadline: float) -> None:
        """Copy the root's `array` to all."""
        flat = flatten(array)
        if self._rank == root:
            self._run(text, dict.fromkeys(self._peers, (as_bytes(flat),)), {}, deadline)
            return
        self._run(text, {}, {root: (as_bytes(flat),)}, deadline)
        put_back(flat, array)

    def all_gather(
        self, text: str, outputs: Sequence[AnyArray], array: AnyArray, deadline: float
    ) -> None:
        """Copy the `array` of every rank to all."""
        own = dict.fromkeys(self._peers, (as_bytes(flatten(array)),))
        self._receive(text, own, {r: outputs[r] for r in self._peers}, deadline)
        outputs[self._rank][...] = array

    def all_to_all(
        self, text: str, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray], deadline: float
    ) -> None:
        """Send a part to each rank, and receive one from each."""
        outgoing = {r: (as_bytes(flatten(inputs[r])),) for r in self._peers}
        self._receive(text, outgoing, {r: outputs[r] for r in self._peers}, deadline)
        outputs[self._rank][...] = inputs[self._rank]

    def gather(
        self,
        text: str,
        outputs: Sequence[AnyArray] | None,
        array: AnyArray,
        root: int,
        deadline: float,
    ) -> None:
        """Copy the `array` of every rank to the root."""
        if outputs is None or self._rank != root:
            self._run(text, {root: (as_bytes(flatten(array)),)}, {}, deadline)
            return
        self._receive(text, {}, {r: outputs[r] for r in self._peers}, deadline)
        outputs[root][...] = array

    def scatter(
        self,
        text: str,
        array: AnyArray,
        inputs: Sequence[AnyArray] | None,
        root: int,
        deadline: float,
    ) -> None:
        """Copy each rank's share from the root."""
        if inputs is None or self._rank != root:
            self._receive(text, {}, {root: array}, deadline)
            return
        self._run(text, {r: (as_bytes(flatten(inputs[r])),) for r in self._peers}, {}, deadline)
        array[...] = inputs[root]

    def send(self, text: str, array: AnyArray, to: int, deadline: float) -> None:
        """Send to one peer."""
        self._run(text, {to: (as_bytes(flatten(array)),)}, {}, deadline)

    def recv(self, text: str, array: AnyArray, source: int, deadline: float) -> None:
        """Receive from one peer."""
        self._receive(text, {}, {source: array}, deadline)

    def barrier(self, text: str, deadline: float) -> None:
        """Wait for every peer."""
        nothing = dict.fromkeys(self._peers, _NOTHING)
        self._run(text, nothing, nothing, deadline)

    def _receive(
        self,
        text: str,
        outgoing: Mapping[int, Segments],
        outputs: Mapping[int, AnyArray],
        deadline: float,
    ) -> None:
        """Run an exchange whose payloads go into arrays that need not be contiguous."""
        received = {r: flatten(output) for r, output in outputs.items()}
        self._run(text, outgoing, {r: (as_bytes(f),) for r, f in received.items()}, deadline)
        for r, flat in received.items():
            put_back(flat, outputs[r])

    def _run(
        self,
        text: str,
        outgoing: Mapping[int, Segments],
        incoming: Mapping[int, Segments],
        deadline: float,
    ) -> None:
        self._transport.begin(text, outgoing, incoming)
        self._transport.finish(deadline)

    def _borrow(self, count: int) -> AnyArray:
        """Return scratch bytes, valid until the next call: fresh pages cost more."""
        if self._scratch.size < count:
            self._scratch = np.empty(count, np.uint8)
        return self._scratch[:count]


def flatten(array: AnyArray) -> AnyArray:
    """Return the values as one contiguous array: a view if possible."""
    return np.ascontiguousarray(array).reshape(-1)


def put_back(flat: AnyArray, array: AnyArray) -> None:
    """Copy the result of a flattened array back, if flattening made a copy."""
    if not np.may_share_memory(flat, array):
        array[...] = flat.reshape(array.shape)


def as_bytes(flat: AnyArray) -> memoryview:
    """Return the memory of a contiguous array."""
    # Through uint8, because memoryview does not support bfloat16.
    return flat.view(np.uint8).data
