"""Rule: how weights follow their gradients, whether dense parameters or rows of a table.

Optimizers apply rules to dense parameters, parameter servers to rows of a table: the same code.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, final

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array, ShapeError, array_module, is_plain, view_of
from gradmesh.engine.backend.dtype import bfloat16, float16, float32


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One array of optimizer state that an update rule keeps per row.

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
    """Base class of update rules: weights from gradients; immutable, state is in slots."""

    name: ClassVar[str]
    """How recipes and checkpoints call the rule."""

    rowwise: ClassVar[bool] = False
    """Whether a row is more than its elements, so that a dense parameter cannot be one long row."""

    maximize: bool = dataclasses.field(default=False, kw_only=True)
    """Whether to maximize: gradients are negated before formula and kernel."""

    signed: ClassVar[tuple[str, ...]] = ()
    """Which of the numbers may be negative."""

    counts_from_state: ClassVar[bool] = False
    """Whether steps count from where the state was made, which may be later than the first."""

    def __post_init__(self) -> None:
        """Raise ValueError if a number lies outside its range."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) or field.name in self.signed:
                continue
            if not value >= 0:
                raise ValueError(f"{field.name} is {value}; it cannot be negative")

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

    def kernel(self) -> Callable[..., None] | None:
        """Return the compiled form of the formula, or None if there is none.

        It takes weights [m, dim], `operands`, the rows to change, their gradients [n, dim], and
        `numbers`.
        """
        return None

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return what the kernel takes besides arrays, floats as the dtype's `kind`."""
        return (kind(lr),)

    def operands(self, slots: Mapping[str, Array]) -> list[Array]:
        """Return the arrays of the slots in the order in which the kernel takes them."""
        return [slots[slot.name] for slot in self.slots(1)]

    @property
    def is_steady(self) -> bool:
        """Return whether `numbers` is the same at every step."""
        return True

    def allocate(self, rows: int, dim: int, dtype: Any, xp: Any = np) -> dict[str, Array]:
        """Return fresh slot arrays for a table of rows; float32 for half precision."""
        dtype = _state_dtype(dtype)
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
        slots = {name: _as_rows(array, len(weights)) for name, array in slots.items()}
        if _is_half(weights.dtype):
            self._update_half(weights, slots, row_indices, grads, lr, step)
            return
        if self.maximize:
            grads = -grads
        if self._compiled(weights, slots, row_indices, grads, lr, step):
            return
        xp = array_module(weights)
        picked = {name: array[row_indices] for name, array in slots.items()}
        part = weights[row_indices]
        self.formula(xp, part, picked, grads, lr, step)
        weights[row_indices] = part
        for name, array in picked.items():
            slots[name][row_indices] = array

    def _update_half(
        self,
        weights: Array,
        slots: Mapping[str, Array],
        index: Array,
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        """Update rows of half precision in float32 and round once."""
        if isinstance(weights, np.ndarray):
            kernels.check_index(index, weights.shape[0])
        wide = weights[index].astype("float32")
        picked = {name: array[index] for name, array in slots.items()}
        every = array_module(weights).arange(len(index))
        self.update_rows(wide, picked, every, grads.astype("float32"), lr, step)
        weights[index] = wide.astype(weights.dtype)
        for name, array in picked.items():
            slots[name][index] = array

    def update(
        self, weight: Array, slots: Mapping[str, Array], grad: Array, lr: float, step: int
    ) -> None:
        """Update a dense parameter in place; slots are shaped as `dense_slots` makes them."""
        BoundRule(self, weight, {"step": step - 1, "slots": slots}).step(grad, lr)

    def dense_slots(self, weight: Array) -> dict[str, Array]:
        """Return fresh slot arrays for a dense parameter, viewed as rows."""
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
        if not is_plain(weights):
            return False
        kernels.check_index(index, weights.shape[0])
        run = self.kernel()
        if run is None:
            return False
        kind = weights.dtype.type
        if grads.dtype != weights.dtype:
            grads = grads.astype(weights.dtype)
        run(weights, *self.operands(slots), index, grads, *self.numbers(kind, lr, step))
        return True


def _is_half(dtype: Any) -> bool:
    return dtype in (float16, bfloat16)


def _state_dtype(dtype: Any) -> Any:
    return float32 if _is_half(np.dtype(dtype)) else dtype


def _with_negated_gradients(run: Callable[..., None], position: int) -> Callable[..., None]:
    """Return a kernel that negates its gradients, the argument at a position."""

    def run_negated(*arguments: Any) -> None:
        run(*arguments[:position], -arguments[position], *arguments[position + 1 :])

    return run_negated


@final
class BoundRule:
    """Apply a rule to one dense parameter; what does not change between steps is computed once.

    Args:
        rule: The rule.
        weight: The parameter's array, of any shape, changed in place.
        kept: Its state: `step`, counted up here, and `slots` as `Rule.dense_slots` makes them.
    """

    __slots__ = (
        "_direct",
        "_dtype",
        "_index",
        "_kept",
        "_lr",
        "_matrix",
        "_numbers",
        "_run",
        "_seen",
        "_shape",
        "_state",
        "rule",
        "weight",
    )

    def __init__(self, rule: Rule, weight: Array, kept: dict[str, Any]) -> None:
        rows, dim = rule.rows_of(weight)
        self.rule, self.weight, self._kept = rule, weight, kept
        # A weight of half precision is updated in float32 and rounded once.
        self._direct = bool(weight.flags.c_contiguous) and not _is_half(weight.dtype)
        self._dtype = _state_dtype(weight.dtype)
        self._shape = (rows, dim)
        self._matrix: Array = view_of(weight, self._shape) if self._direct else None
        # Row gradients may have made the slots; they are the same memory as one long row.
        self._seen = {name: _as_rows(array, rows) for name, array in kept["slots"].items()}
        self._state = rule.operands(self._seen)
        self._index = np.arange(rows)
        self._run = rule.kernel() if isinstance(weight, np.ndarray) else None
        if self._run is not None and rule.maximize:
            self._run = _with_negated_gradients(self._run, 2 + len(self._state))
        self._lr: float | None = None
        self._numbers: tuple[Any, ...] = ()

    def step(self, grad: Array, lr: float) -> None:
        """Count one step and update the parameter in place.

        Raises:
            ShapeError: If the gradient has another shape; nothing is changed then.
        """
        weight = self.weight
        if grad.shape != weight.shape:
            raise ShapeError(f"gradient {tuple(grad.shape)} for a parameter {tuple(weight.shape)}")
        if grad.dtype is not self._dtype and grad.dtype != self._dtype:
            grad = grad.astype(self._dtype)
        step = self._kept["step"] + 1
        self._kept["step"] = step
        if not self._direct:
            self._matrix = weight.astype(self._dtype).reshape(self._shape)
        given = grad.reshape(self._shape)
        if self._run is None:
            rule, matrix = self.rule, self._matrix
            if rule.maximize:
                given = -given
            rule.formula(array_module(matrix), matrix, self._seen, given, lr, step)
        else:
            if lr != self._lr:
                self._numbers = self.rule.numbers(self._dtype.type, lr, step)
                self._lr = lr if self.rule.is_steady else None
            self._run(self._matrix, *self._state, self._index, given, *self._numbers)
        if not self._direct:
            weight[...] = self._matrix.reshape(weight.shape)


def _as_rows(slot: Array, rows: int) -> Array:
    """Return a slot's own memory as [rows, width]."""
    return view_of(slot, (rows, slot.size // rows if rows else math.prod(slot.shape[1:])))
