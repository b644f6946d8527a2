"""Feature interactions as modules."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import Generator
from gradmesh.engine.backend.dtype import float32
from gradmesh.engine.nn.container import ModuleList
from gradmesh.engine.nn.linear import Linear
from gradmesh.engine.nn.module import Module


@final
class DotInteraction(Module):
    """Compute the dot products of all pairs of features, as DLRM does.

    Args:
        self_interaction: Include each feature with itself.
    """

    def __init__(self, self_interaction: bool = False) -> None:
        super().__init__()
        self.self_interaction = self_interaction

    def forward(self, x: Any) -> Any:
        """Return the products of x [batch, features, dim], [batch, pairs]."""
        return ops.dot_interaction(x, self.self_interaction)


@final
class CrossNetwork(Module):
    """Stack cross layers of DCNv2: x0 * (x W + b) + x.

    Args:
        features: Length of the input.
        depth: How many layers.
        device: Where the parameters live.
        dtype: Of the parameters.
        generator: Where initial values come from.
    """

    def __init__(
        self,
        features: int,
        depth: int,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.layers = ModuleList(
            Linear(features, features, device=device, dtype=dtype, generator=generator)
            for _ in range(depth)
        )

    def forward(self, x: Any) -> Any:
        """Return [batch, features]."""
        first = x
        for layer in self.layers:
            x = ops.cross_layer(first, x, layer.weight, layer.bias)
        return x


@final
class FactorizationMachine(Module):
    """Sum the dot products of all pairs of features."""

    def forward(self, x: Any) -> Any:
        """Return the sum for x [batch, features, dim], [batch, 1]."""
        return ops.factorization_machine(x)
