"""One open context on a server: its lookups and pending gradients, and the memory they take."""

import functools
import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.frame import Array

ENTRY_BYTES = 512
"""What a lookup, or the gradients of one, cost beside their arrays."""

Slots: TypeAlias = NDArray[np.int64]


class TableLookup(NamedTuple):
    """The rows of one table that a lookup read, as handles of the table."""

    table: str
    slots: Slots
    steps: int = 0
    """Steps applied to the table when the rows were read."""


class Gradient(NamedTuple):
    """Gradients of rows of one table; no slot twice."""

    table: str
    slots: Slots
    rows: Array


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchedLookup:
    """A lookup made ahead of its step, the number of changes that its rows include, its bytes."""

    parts: list[TableLookup]
    count: int
    size: int = 0


@dataclass(slots=True, eq=False)
class OpenContext:
    """An open context: lookups and their gradients, by the caller's number of the lookup.

    Attributes:
        lookups: The lookups.
        prefetched: Those made ahead of their step.
        returned: Gradients by lookup, then by backward pass.
        sizes: Bytes of the lookups that were not prefetched.
        size: Bytes of all.
        used_at: When it was used last.
    """

    lookups: dict[int, list[TableLookup]] = field(default_factory=dict)
    prefetched: dict[int, PrefetchedLookup] = field(default_factory=dict)
    returned: dict[int, dict[int, list[Array]]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    size: int = 0
    used_at: float = 0.0

    def returned_parts(self) -> list[TableLookup]:
        """Return the lookups that have gradients."""
        return [part for number in self.returned for part in self.lookups[number]]

    def gradients(self) -> list[Gradient]:
        """Return all gradients in the order of the caller's numbers."""
        return [
            Gradient(part.table, part.slots, rows)
            for number in sorted(self.returned)
            for part, rows in zip(self.lookups[number], self._summed(number), strict=True)
        ]

    def drop(self, failed: Collection[int]) -> int:
        """Drop the gradients of failed passes; return how many bytes they took."""
        before = self._gradient_bytes()
        for number in list(self.returned):
            passes = self.returned[number]
            self.returned[number] = {p: grads for p, grads in passes.items() if p not in failed}
            if not self.returned[number]:
                del self.returned[number]
        return before - self._gradient_bytes()

    def _gradient_bytes(self) -> int:
        passes = (grads for by_pass in self.returned.values() for grads in by_pass.values())
        return sum(bytes_of(grads) for grads in passes)

    def _summed(self, number: int) -> list[Array]:
        """Return a lookup's gradients; those of several passes are added in order of the passes."""
        by_pass = [grads for _, grads in sorted(self.returned[number].items())]
        return [functools.reduce(operator.add, parts) for parts in zip(*by_pass, strict=True)]


def bytes_of(arrays: Collection[Array]) -> int:
    """Return what a lookup with these ids, or the gradients in these arrays, take in memory."""
    size = ENTRY_BYTES
    for array in arrays:
        size += array.nbytes
    return size
