"""Rows and their optimizer state, by slot.

16-bit rows are updated in float32 and rounded once a step; their state is float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from gradmesh.engine.kernels import copy_in, copy_out
from gradmesh.engine.optim import Rule
from gradmesh.protos.frame import Array
from gradmesh.sdk.table.spec import row_bytes, wide_dtype
from gradmesh.services.parameter_server.table.index import Slots
from gradmesh.services.parameter_server.table.memory import Reserved

# Elements handled at once where temporary arrays are needed, so that they stay small.
_CHUNK_ELEMENTS = 1 << 22

_ALL = (slice(None),)

# A smaller table uses small pages, so that it takes no more memory than it needs.
_HUGE_FROM = 16 << 20


@final
class Layout:
    """How a row and its state are stored.

    Args:
        dim: Elements of a row.
        dtype: Type of its elements.
        rule: Update rule, which declares the state.
    """

    def __init__(self, dim: int, dtype: np.dtype[Any], rule: Rule) -> None:
        self.dim = dim
        self.dtype = dtype
        self.rule = rule
        self.slots = rule.slots(dim)
        self.wide = wide_dtype(dtype)
        self.row_bytes = row_bytes(dim, dtype, rule)
        self.kernel = rule.kernel()


class Rows(ABC):
    """Rows and state; called under the table's lock."""

    layout: Layout

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of slots with address space."""

    @abstractmethod
    def _arrays(self) -> tuple[Array, dict[str, Array]]:
        """Return the arrays of rows and state that `_positions` refers to."""

    @abstractmethod
    def _positions(self, slots: Slots) -> Slots:
        """Return the position of each slot, -1 for -1; valid until the next call."""

    @abstractmethod
    def clear(self) -> None:
        """Release the memory of all rows."""

    @abstractmethod
    def memory_bytes(self, slots: int) -> int:
        """Return the memory of a number of slots."""

    def weights(self) -> Array:
        """Return the memory of rows, not a copy."""
        return self._arrays()[0]

    @property
    def most_at_once(self) -> int:
        """Most slots of one call of `_positions`."""
        return max(1, _CHUNK_ELEMENTS // self.layout.dim)

    @property
    def file_bytes(self) -> int:
        """Bytes on disk."""
        return 0

    @abstractmethod
    def ensure(self, slots: int) -> None:
        """Allocate disk for the first slots.

        Raises:
            StoreFull: The disk is full.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files."""

    def read(self, slots: Slots, out: Array, *, whole: bool = False) -> None:
        """Copy rows into `out`; slots of -1 are skipped. `whole` asserts that there are none."""
        for part in self._parts(slots.size):
            positions, target = self._positions(slots[part]), out[part]
            if whole:
                # "clip" skips the bounds check of numpy, which would copy through a buffer.
                self._arrays()[0].take(positions, 0, target, "clip")
            else:
                copy_out(self._arrays()[0], positions, target)

    def state(self, slots: Slots) -> dict[str, Array]:
        """Return copies of the optimizer state of rows."""
        found = {s.name: np.empty((slots.size, s.width), self.layout.wide) for s in self._slots()}
        for part in self._parts(slots.size):
            positions = self._positions(slots[part])
            for name, array in self._arrays()[1].items():
                copy_out(array, positions, found[name][part])
        return found

    def write(self, slots: Slots, rows: Array, state: dict[str, Array] | None = None) -> None:
        """Set rows in order, and their state; to its initial value if not given."""
        for part in self._parts(slots.size):
            positions = self._positions(slots[part])
            weights, arrays = self._arrays()
            copy_in(weights, positions, np.ascontiguousarray(rows[part]).astype(weights.dtype))
            for slot in self._slots():
                if state is None:
                    arrays[slot.name][positions] = slot.initial
                else:
                    copy_in(
                        arrays[slot.name], positions, np.ascontiguousarray(state[slot.name][part])
                    )

    def update(self, slots: Slots, grads: Array, lr: float, step: int) -> None:
        """Update rows by gradients; no slot twice, none -1."""
        for part in self._parts(slots.size):
            positions = self._positions(slots[part])
            weights, state = self._arrays()
            layout = self.layout
            if weights.dtype != layout.wide:
                self._update_narrow(weights, state, positions, grads[part], lr, step)
            elif layout.kernel is None:
                layout.rule.update_rows(weights, state, positions, grads[part], lr, step)
            else:
                # Positions are computed here and gradients were checked: no second check.
                numbers = layout.rule.numbers(weights.dtype.type, lr, step)
                operands = layout.rule.operands(state)
                given = -grads[part] if layout.rule.maximize else grads[part]
                layout.kernel(weights, *operands, positions, given, *numbers)

    def _update_narrow(
        self,
        weights: Array,
        state: dict[str, Array],
        positions: Slots,
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        rows = np.empty((positions.size, self.layout.dim), weights.dtype)
        copy_out(weights, positions, rows)
        wide = rows.astype(self.layout.wide)
        picked = {name: array[positions] for name, array in state.items()}
        given = grads.astype(self.layout.wide)
        self.layout.rule.update_rows(wide, picked, np.arange(positions.size), given, lr, step)
        copy_in(weights, positions, wide.astype(weights.dtype))
        for name, array in picked.items():
            state[name][positions] = array

    def _slots(self) -> tuple[Any, ...]:
        return self.layout.slots

    def _parts(self, count: int) -> Iterable[slice]:
        most = self.most_at_once
        if 0 < count <= most:
            return _ALL
        return [slice(begin, begin + most) for begin in range(0, count, most)]


@final
class MemoryRows(Rows):
    """Rows in memory: a slot is a position.

    Args:
        layout: Layout of a row.
        capacity: Slots for which address space is reserved.
    """

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.layout = layout
        self._rows = Reserved((capacity, layout.dim), layout.dtype, huge_from=_HUGE_FROM)
        self._state = {
            slot.name: Reserved((capacity, slot.width), layout.wide, huge_from=_HUGE_FROM)
            for slot in layout.slots
        }
        self._views = {name: held.array for name, held in self._state.items()}

    def __len__(self) -> int:
        return len(self._rows.array)

    def _arrays(self) -> tuple[Array, dict[str, Array]]:
        return self._rows.array, self._views

    def _positions(self, slots: Slots) -> Slots:
        return slots

    def ensure(self, slots: int) -> None:
        """Do nothing: memory was reserved before."""

    def close(self) -> None:
        """Do nothing: there are no files."""

    def clear(self) -> None:
        """Release the memory of all rows."""
        for held in (self._rows, *self._state.values()):
            held.clear()

    def memory_bytes(self, slots: int) -> int:
        """Return the memory of a number of slots."""
        return slots * self.layout.row_bytes
