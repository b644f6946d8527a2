"""The collectives of host arrays, built from one primitive: a round of bytes between ranks.

All-reduce of big arrays: every rank receives its slice from all others, reduces it in rank
order and sends the result to all; of small ones: everybody sends all to everybody and
reduces all, one round instead of two. Both give the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp
from gradmesh.trainer.process_group.reduction import reduce_in_order, slices

_ONE_ROUND_BYTES = 16 * 1024

Rest: TypeAlias = Callable[[float], None]
"""What is left of a collective that has begun; takes the deadline."""


class Round(Protocol):
    """Sends `outgoing` and fills `incoming`, both by peer rank, before `deadline`.

    `text` is the collective in words: peers MUST say the same, or all raise
    CollectiveMismatch.
    """

    def __call__(
        self,
        text: str,
        outgoing: Mapping[int, memoryview],
        incoming: Mapping[int, memoryview],
        deadline: float,
    ) -> None:
        """Run the round."""


class Collectives:
    """What rank `rank` of `size` does in each collective. One thread at a time.

    Args:
        rank: This process's place.
        size: How many ranks take part.
        run: Moves bytes.
    """

    def __init__(self, rank: int, size: int, run: Round) -> None:
        self._rank = rank
        self._size = size
        self._peers = [peer for peer in range(size) if peer != rank]
        self._run = run
        self._scratch = np.empty(0, np.uint8)

    def begin_all_reduce(self, text: str, array: AnyArray, op: ReduceOp) -> Rest | None:
        """Do at once what the peers need from us, if that takes no waiting.

        Called when nothing else is under way. Returns the rest, for whoever waits; None if
        nothing was done.
        """
        return None

    def begin_barrier(self, text: str) -> Rest | None:
        """Begin as begin_all_reduce does."""
        return None

    def all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        """Combine `array` in place."""
        flat = flatten(array)
        if flat.nbytes <= _ONE_ROUND_BYTES:
            parts = [flat] * self._size
            self._reduce(text, parts, flat, op, deadline)
        else:
            parts = [flat[cut] for cut in slices(flat.size, self._size)]
            self._reduce(text, parts, parts[self._rank], op, deadline)
            outgoing = dict.fromkeys(self._peers, as_bytes(parts[self._rank]))
            self._run(text, outgoing, {r: as_bytes(parts[r]) for r in self._peers}, deadline)
        put_back(flat, array)

    def reduce_scatter(
        self, text: str, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp, deadline: float
    ) -> None:
        """Combine everybody's `inputs[rank]` into `output`."""
        flat = np.array(inputs[self._rank]).reshape(-1)
        parts = [flat if r == self._rank else flatten(inputs[r]) for r in range(self._size)]
        self._reduce(text, parts, flat, op, deadline)
        output[...] = flat.reshape(output.shape)

    def _reduce(
        self, text: str, parts: Sequence[AnyArray], out: AnyArray, op: ReduceOp, deadline: float
    ) -> None:
        """Send each peer its part, and reduce ours into `out`, which is our own part."""
        received = self._borrow(out.nbytes * len(self._peers)).view(out.dtype)
        rows = iter(received.reshape(len(self._peers), out.size))
        contributions = [out if r == self._rank else next(rows) for r in range(self._size)]
        outgoing = {r: as_bytes(parts[r]) for r in self._peers}
        incoming = {r: as_bytes(contributions[r]) for r in self._peers}
        self._run(text, outgoing, incoming, deadline)
        reduce_in_order(contributions, op, out=out)

    def broadcast(self, text: str, array: AnyArray, root: int, deadline: float) -> None:
        """Copy the root's `array` to all."""
        flat = flatten(array)
        if self._rank == root:
            self._run(text, dict.fromkeys(self._peers, as_bytes(flat)), {}, deadline)
            return
        self._run(text, {}, {root: as_bytes(flat)}, deadline)
        put_back(flat, array)

    def all_gather(
        self, text: str, outputs: Sequence[AnyArray], array: AnyArray, deadline: float
    ) -> None:
        """Copy everybody's `array` to all."""
        own = dict.fromkeys(self._peers, as_bytes(flatten(array)))
        self._receive(text, own, {r: outputs[r] for r in self._peers}, deadline)
        outputs[self._rank][...] = array

    def all_to_all(
        self, text: str, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray], deadline: float
    ) -> None:
        """Copy a part to each, and take one from each."""
        outgoing = {r: as_bytes(flatten(inputs[r])) for r in self._peers}
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
        """Copy everybody's `array` to the root."""
        if outputs is None or self._rank != root:
            self._run(text, {root: as_bytes(flatten(array))}, {}, deadline)
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
        self._run(text, {r: as_bytes(flatten(inputs[r])) for r in self._peers}, {}, deadline)
        array[...] = inputs[root]

    def send(self, text: str, array: AnyArray, to: int, deadline: float) -> None:
        """Send to one peer."""
        self._run(text, {to: as_bytes(flatten(array))}, {}, deadline)

    def recv(self, text: str, array: AnyArray, source: int, deadline: float) -> None:
        """Receive from one peer."""
        self._receive(text, {}, {source: array}, deadline)

    def barrier(self, text: str, deadline: float) -> None:
        """Hear of every peer."""
        nothing = dict.fromkeys(self._peers, memoryview(b""))
        self._run(text, nothing, nothing, deadline)

    def _receive(
        self,
        text: str,
        outgoing: Mapping[int, memoryview],
        outputs: Mapping[int, AnyArray],
        deadline: float,
    ) -> None:
        """Run a round whose payloads go into arrays that need not be contiguous."""
        received = {r: flatten(output) for r, output in outputs.items()}
        self._run(text, outgoing, {r: as_bytes(f) for r, f in received.items()}, deadline)
        for r, flat in received.items():
            put_back(flat, outputs[r])

    def _borrow(self, count: int) -> AnyArray:
        """Return scratch bytes that live until the next call: fresh pages cost more."""
        if self._scratch.size < count:
            self._scratch = np.empty(count, np.uint8)
        return self._scratch[:count]


def flatten(array: AnyArray) -> AnyArray:
    """Return the values as one contiguous run: a view if they are one already."""
    return np.ascontiguousarray(array).reshape(-1)


def put_back(flat: AnyArray, array: AnyArray) -> None:
    """Copy the result of a flattened array back, if flattening made a copy."""
    if not np.may_share_memory(flat, array):
        array[...] = flat.reshape(array.shape)


def as_bytes(flat: AnyArray) -> memoryview:
    """Return the memory of a contiguous array."""
    # Through uint8, because memoryview knows no bfloat16.
    return flat.view(np.uint8).data
