"""What generators draw from: tensors that a graph has, new leaves, shapes, axes and numbers.

Torch's values are at hand while a graph grows, so a generator sees real shapes and dtypes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity.fuzz.execute import Machine
from tests.parity.fuzz.graph import Graph, Leaf, Node, Ref
from tests.parity.fuzz.library import FLOATS, TORCH, numpy_dtype

INTS = ("int64", "int32", "int16", "int8", "uint8")
SPECIAL = (float("inf"), float("-inf"), float("nan"), -0.0, 1e4, 1e-6)


class Draw:
    """Draw arguments for a graph that grows.

    Args:
        seed: Makes everything.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.machine = Machine(TORCH)
        self.graph = Graph([], gradient_seed=seed % 2**31)
        self.refs: list[Ref] = []
        self.dtype = self.rng.choices(FLOATS, (6, 6, 36, 40))[0]
        # Few lengths a graph, so that shapes fit each other often.
        self.lengths = [1, self.rng.randint(2, 4), self.rng.randint(2, 5), 0]
        self.is_odd = self.rng.random() < 0.1

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.rng.random() < probability

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[self.rng.randrange(len(choices))]

    def append(self, item: Leaf | Node) -> Any:
        """Add an item to the graph, execute it in torch and return the results."""
        result = self.machine.add(item)
        self.graph.items.append(item)
        if isinstance(result, list):
            self.refs += [Ref(len(self.graph.items) - 1, k) for k in range(len(result))]
        return result

    def drop(self) -> None:
        """Remove the last item, which must not have changed anything."""
        slot = len(self.graph.items) - 1
        del self.graph.items[slot], self.machine.values[slot]
        self.machine.modules = [m for m in self.machine.modules if m[0] != slot]
        self.refs = [r for r in self.refs if r.slot != slot]

    def of(self, ref: Ref) -> Any:
        """Return torch's tensor of a Ref."""
        return self.machine.tensor(ref)

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.of(ref).shape)

    def dtype_of(self, ref: Ref) -> str:
        """Return the name of a tensor's dtype."""
        return TORCH.dtype_name(self.of(ref))

    def kind_of(self, ref: Ref) -> str:
        """Return "float", "int" or "bool"."""
        tensor = self.of(ref)
        if tensor.is_floating_point():
            return "float"
        return "bool" if self.dtype_of(ref) == "bool" else "int"

    def length(self) -> int:
        """Draw the length of an axis."""
        return self.rng.choices(self.lengths, (4, 8, 7, 1))[0]

    def shape(self, ndim: int | None = None) -> tuple[int, ...]:
        """Draw a shape, with the given number of axes if any."""
        if ndim is None:
            ndim = self.rng.choices((0, 1, 2, 3, 4), (2, 5, 8, 4, 1))[0]
        return tuple([self.length() for _ in range(ndim)])

    def leaf(
        self,
        shape: tuple[int, ...] | None = None,
        kind: str = "float",
        low: int = -3,
        high: int = 4,
        dtype: str | None = None,
        requires_grad: bool | None = None,
        is_plain: bool = False,
    ) -> Ref:
        """Add a leaf; integers lie in [low, high), 'positive' floats in [0.5, 2)."""
        shape = self.shape() if shape is None else shape
        if dtype is None:
            dtype = self._leaf_dtype(kind)
        values = self._numbers(shape, kind, low, high, dtype)
        layout = ("plain",) if is_plain else self._layout(values)
        if layout[0] == "broadcast":
            values = np.repeat(values.take([0], axis=layout[1]), shape[layout[1]], axis=layout[1])
        if requires_grad is None:
            requires_grad = dtype in FLOATS and self.chance(0.8)
        self.append(Leaf(values, layout, requires_grad))
        return Ref(len(self.graph.items) - 1)

    def _leaf_dtype(self, kind: str) -> str:
        if kind == "bool":
            return "bool"
        if kind == "int":
            return "int64" if self.chance(0.7) else self.pick(*INTS)
        return self.dtype if self.chance(0.93) else self.pick(*FLOATS)

    def _numbers(self, shape: Any, kind: str, low: int, high: int, dtype: str) -> Any:
        draw = self.values
        if kind == "bool":
            return np.asarray(draw.random(shape) < 0.5)
        if kind == "int":
            low = max(low, 0) if dtype == "uint8" else low
            return np.asarray(draw.integers(low, high, size=shape)).astype(dtype)
        if kind == "positive":
            made = draw.uniform(0.5, 2.0, size=shape)
        elif self.chance(0.5):
            # Quarters: exact in every dtype, with zeros and equal elements among them.
            made = draw.integers(-8, 9, size=shape) / 4
        else:
            made = draw.normal(size=shape)
        made = np.asarray(made)
        if made.size and kind == "float" and self.is_odd and self.chance(0.3):
            made.reshape(-1)[self.rng.randrange(made.size)] = self.pick(*SPECIAL)
        return made.astype(numpy_dtype(dtype))

    def _layout(self, values: Any) -> tuple[Any, ...]:
        if not values.ndim or self.chance(0.6):
            return ("plain",)
        axis = self.rng.randrange(values.ndim)
        kind = self.pick("permuted", "stepped", "negative", "broadcast")
        if kind == "permuted":
            return (kind, tuple(self.rng.sample(range(values.ndim), values.ndim)))
        return ("plain",) if kind == "broadcast" and not values.shape[axis] else (kind, axis)

    def tensor(
        self,
        kind: str = "float",
        ndim: int | tuple[int, int] | None = None,
        shape: tuple[int, ...] | None = None,
        test: Callable[[tuple[int, ...]], bool] | None = None,
    ) -> Ref:
        """Return a tensor that the graph has and that fits, or a new leaf."""
        low, high = (0, 9) if ndim is None else ((ndim, ndim) if isinstance(ndim, int) else ndim)
        if self.chance(0.8):
            fits = [r for r in self.refs if self._fits(r, kind, low, high, shape, test)]
            if fits:
                # The newest are the most likely: graphs grow deep rather than wide.
                return self.rng.choice(fits[-3:] if self.chance(0.6) else fits)
        if shape is None:
            count = self.rng.randint(low, min(high, 4)) if ndim is not None else None
            shape = self.shape(count)
            if test is not None and not test(shape):
                shape = tuple([max(n, 1) for n in shape])
        if kind == "any":
            kind = self.rng.choices(("float", "int", "bool"), (7, 2, 1))[0]
        return self.leaf(shape, kind)

    def _fits(self, ref: Ref, kind: str, low: int, high: int, shape: Any, test: Any) -> bool:
        own = self.shape_of(ref)
        if not low <= len(own) <= high or (shape is not None and own != shape):
            return False
        if test is not None and not test(own):
            return False
        if kind == "same":
            return self.dtype_of(ref) == self.dtype
        return kind == "any" or kind == self.kind_of(ref)

    def partner(self, ref: Ref, kind: str = "float") -> Any:
        """Return a tensor that broadcasts with another, sometimes a number, seldom a misfit."""
        shape = self.shape_of(ref)
        if self.chance(0.15):
            return self.number()
        if self.chance(0.02):
            return self.leaf(kind=kind)
        if self.chance(0.5):
            fits = [r for r in self.refs if _broadcasts(self.shape_of(r), shape)]
            if fits:
                return self.rng.choice(fits)
        kept = list(shape[self.rng.randint(0, len(shape)) if self.chance(0.3) else 0 :])
        kept = [1 if self.chance(0.2) else n for n in kept]
        return self.leaf(tuple(kept), kind)

    def number(self) -> Any:
        """Draw a Python number, sometimes one of numpy's."""
        if self.chance(0.04):
            return self.pick(True, False, 0, 0.0)
        if self.chance(0.08):
            return self.pick(
                np.int8(3), np.int64(-1), np.float16(0.5), np.float32(2), np.float64(1.5)
            )
        return self.pick(2, 3, -1, 0.5, -1.5, 2.0, 1, 0.25)

    def dim(self, ref: Ref, wrong: float = 0.02) -> int:
        """Draw an axis of a tensor, seldom one that it does not have."""
        ndim = len(self.shape_of(ref))
        if self.chance(wrong):
            return self.pick(ndim, -ndim - 1)
        return self.rng.randrange(-ndim, ndim) if ndim else self.pick(0, -1)

    def dims(self, ref: Ref) -> Any:
        """Draw None, an axis or several."""
        ndim = len(self.shape_of(ref))
        if not ndim or self.chance(0.3):
            return None
        if self.chance(0.6):
            return self.dim(ref)
        axes = self.rng.sample(range(ndim), self.rng.randint(1, ndim))
        return tuple([a - ndim if self.chance(0.3) else a for a in axes])


def _broadcasts(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    pairs = zip(reversed(first), reversed(second), strict=False)
    return all(m == n or m == 1 or n == 1 for m, n in pairs)
