"""A bound on the memory of a model whose widths come from a file."""

import math
from typing import Any, final

from gradmesh.engine.backend import Generator
from gradmesh.trainer.errors import DataError


@final
class BudgetGenerator(Generator):
    """Draws initial values for at most as many elements as the file with the parameters has.

    A model's description may claim layers of any width. Every parameter gets its initial values
    from the generator, before it takes memory.

    Args:
        seed: Where the stream starts.
        elements: Elements that may be drawn in all.
    """

    __slots__ = ("_left",)

    def __init__(self, seed: int, elements: int) -> None:
        super().__init__(seed)
        self._left = elements

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Any:
        """Draw float64 numbers from [low, high)."""
        self._take(shape)
        return super().uniform(low, high, shape)

    def normal(self, mean: float, std: float, shape: tuple[int, ...]) -> Any:
        """Draw float64 numbers from a normal distribution."""
        self._take(shape)
        return super().normal(mean, std, shape)

    def _take(self, shape: tuple[int, ...]) -> None:
        self._left -= math.prod(shape)
        if self._left < 0:
            raise DataError(
                "the model's settings describe more parameters than its file holds; [model] and "
                "dense.safetensors are not of one model"
            )
