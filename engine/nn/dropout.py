"""Dropout as a module."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn.module import Module


@final
class Dropout(Module):
    """Set elements to 0 at random in training.

    Args:
        p: Probability of 0.
        generator: Where the choice comes from.
    """

    def __init__(self, p: float = 0.5, generator: Generator | None = None) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is {p}; a probability lies in [0, 1]")
        self.p, self.generator = p, generator

    def forward(self, x: Any) -> Any:
        """Return x, partly 0 in training."""
        return ops.dropout(x, self.p, self.training, self.generator)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"
