"""Seeded random numbers, drawn on the host so that every device gets the same values."""

from __future__ import annotations

from typing import Any

import numpy as np


class Generator:
    """Draw random numbers from one seeded stream.

    Args:
        seed: Where the stream starts; equal seeds give equal numbers on any machine.
    """

    __slots__ = ("_rng", "_seed")

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Restart the stream from a seed."""
        self._seed = seed
        self._rng = np.random.Generator(np.random.PCG64(seed))
        return self

    def initial_seed(self) -> int:
        """Return the seed the stream started from."""
        return self._seed

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Any:
        """Draw float64 numbers from [low, high)."""
        return self._rng.uniform(low, high, shape)

    def normal(self, mean: float, std: float, shape: tuple[int, ...]) -> Any:
        """Draw float64 numbers from a normal distribution."""
        return self._rng.normal(mean, std, shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Any:
        """Draw int64 numbers from [low, high)."""
        return self._rng.integers(low, high, shape)

    def random(self, shape: tuple[int, ...]) -> Any:
        """Draw float32 numbers from [0, 1)."""
        return self._rng.random(shape, dtype=np.float32)

    def permutation(self, count: int) -> Any:
        """Draw an order of the numbers below count."""
        return self._rng.permutation(count)

    def get_state(self) -> dict[str, Any]:
        """Return the position in the stream, as plain values."""
        return {"seed": self._seed, "state": self._rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._seed = state["seed"]
        self._rng.bit_generator.state = state["state"]


_default = Generator(0)


def default_generator() -> Generator:
    """Return the generator that is used if none is given."""
    return _default


def manual_seed(seed: int) -> Generator:
    """Seed the default random generator and return it."""
    return _default.manual_seed(seed)
