"""Rule: how one array of weights follows its gradients, without knowing whose weights they are.

Optimizers apply rules to dense parameters, parameter servers to rows of a table: the same code.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array, ShapeError, array_module


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """Describe one piece of state that a rule keeps per row.

    Args:
        name: Key in the mapping of slot arrays.
        width: Columns per row: the row's own dim, or 1.
        initial: Value before the first update.
    """

    name: str
    width: int
    initial: float = 0.0


@dataclasses.dataclass(frozen=True)
class Rule(ABC):
    """Update weights from gradients; immutable, all state is in the slots."""

    name: ClassVar[str]
    """How recipes and checkpoints call the rule."""

    rowwise: ClassVar[bool] = False
    """Whether a row is more than its elements, so that a dense parameter cannot be one long row."""

    @abstractmethod
    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Return the state kept per row of `dim` columns."""

    @abstractmethod
    def formula(
        self,
        xp: Any,
        weights: Array,
        slots: Mapping[str, Array],
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        """Change weights [n, dim] and slots [n, width] in place, in array operations."""

    def kernel(
        self,
        weights: Array,
        slots: Mapping[str, Array],
        index: Array,
        grads: Array,
        lr: float,
        step: int,
    ) -> bool:
        """Do the update compiled, on host arrays; return False if the rule has no kernel."""
        return False

    def allocate(self, rows: int, dim: int, dtype: Any, xp: Any = np) -> dict[str, Array]:
        """Return fresh slot arrays for a table of rows."""
        return {s.name: xp.full((rows, s.width), s.initial, dtype=dtype) for s in self.slots(dim)}

    def update_rows(
        self,
        weights: Array,
        slots: Mapping[str, Array],
        row_indices: Array,
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        """Update some rows of a table in place.

        Args:
            weights: [rows, dim].
            slots: One array [rows, width] per slot, as `allocate` makes them.
            row_indices: int64 [n], distinct.
            grads: [n, dim], in the order of row_indices.
            lr: Learning rate.
            step: Number of this step, from 1.

        Raises:
            ShapeError: If the gradients do not fit the rows; nothing is changed then.
            IndexError: If a row lies outside the table; nothing is changed then.
        """
        if grads.shape != (len(row_indices), weights.shape[1]):
            raise ShapeError(
                f"gradients {tuple(grads.shape)} do not fit {len(row_indices)} rows of "
                f"{weights.shape[1]} columns"
            )
        slots = {name: array.reshape(len(weights), -1) for name, array in slots.items()}
        if self._compiled(weights, slots, row_indices, grads, lr, step):
            return
        xp = array_module(weights)
        picked = {name: array[row_indices] for name, array in slots.items()}
        part = weights[row_indices]
        self.formula(xp, part, picked, grads, lr, step)
        weights[row_indices] = part
        for name, array in picked.items():
            slots[name][row_indices] = array

    def update(
        self, weight: Array, slots: Mapping[str, Array], grad: Array, lr: float, step: int
    ) -> None:
        """Update a dense parameter in place; slots are shaped as `dense_slots` makes them."""
        BoundRule(self, weight, slots).update(grad, lr, step)

    def dense_slots(self, weight: Array) -> dict[str, Array]:
        """Return fresh slot arrays for a dense parameter, seen as rows."""
        rows, dim = self.rows_of(weight)
        return self.allocate(rows, dim, weight.dtype, array_module(weight))

    def rows_of(self, weight: Array) -> tuple[int, int]:
        """Return how many rows of what length a dense parameter is for this rule."""
        if not self.rowwise or weight.ndim < 2:
            return 1, weight.size
        return weight.shape[0], weight.size // max(weight.shape[0], 1)

    def _compiled(
        self,
        weights: Array,
        slots: Mapping[str, Array],
        index: Array,
        grads: Array,
        lr: float,
        step: int,
    ) -> bool:
        if not isinstance(weights, np.ndarray) or weights.dtype.char not in "fd":
            return False
        kernels.check_index(index, weights.shape[0])
        if grads.dtype != weights.dtype:
            grads = grads.astype(weights.dtype)
        return self.kernel(weights, slots, index, grads, lr, step)


@final
class BoundRule:
    """Apply a rule to one dense parameter; everything that stays the same is worked out once.

    Args:
        rule: The rule.
        weight: The parameter's array, of any shape, changed in place.
        slots: Its state, as `Rule.dense_slots` makes it.
    """

    __slots__ = ("_given", "_index", "_kernel", "_matrix", "_rule", "_seen", "_shape", "_weight")

    def __init__(self, rule: Rule, weight: Array, slots: Mapping[str, Array]) -> None:
        rows, dim = self._shape = rule.rows_of(weight)
        self._rule, self._weight, self._given = rule, weight, slots
        self._matrix = weight.reshape(rows, dim)
        # Row gradients may have made the slots; they are the same memory as one long row.
        self._seen = {name: array.reshape(rows, -1) for name, array in slots.items()}
        self._index = np.arange(rows)
        self._kernel = isinstance(weight, np.ndarray) and weight.dtype.char in "fd"

    def fits(self, rule: Rule, weight: Array, slots: Mapping[str, Array]) -> bool:
        """Tell whether this is still the same rule, parameter and state."""
        return rule is self._rule and weight is self._weight and slots is self._given

    def update(self, grad: Array, lr: float, step: int) -> None:
        """Update the parameter in place.

        Raises:
            ShapeError: If the gradient has another shape; nothing is changed then.
        """
        weight = self._weight
        if grad.shape != weight.shape:
            raise ShapeError(f"gradient {tuple(grad.shape)} for a parameter {tuple(weight.shape)}")
        if grad.dtype != weight.dtype:
            grad = grad.astype(weight.dtype)
        given = grad.reshape(self._shape)
        if not weight.flags.c_contiguous:
            self._matrix = weight.reshape(self._shape)
        done = self._kernel and self._rule.kernel(
            self._matrix, self._seen, self._index, given, lr, step
        )
        if not done:
            xp = array_module(weight)
            self._rule.formula(xp, self._matrix, self._seen, given, lr, step)
        if not weight.flags.c_contiguous:
            # The reshape had to copy.
            weight[...] = self._matrix.reshape(weight.shape)
