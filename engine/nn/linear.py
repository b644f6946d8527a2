"""Linear layers and stacks of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import empty, ops
from gradmesh.engine.backend import Generator
from gradmesh.engine.backend.dtype import float32
from gradmesh.engine.nn import init
from gradmesh.engine.nn.activation import ReLU
from gradmesh.engine.nn.container import ModuleList
from gradmesh.engine.nn.module import Module, Parameter


@final
class Linear(Module):
    """Compute x Wᵀ + b.

    Args:
        in_features: Length of the input's last axis.
        out_features: Length of the result's last axis.
        bias: Whether to add b.
        device: Where the parameters live.
        dtype: Of the parameters.
        generator: Where initial values come from.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in_features, dtype=dtype, device=device))
        made = Parameter(empty(out_features, dtype=dtype, device=device)) if bias else None
        self.register_parameter("bias", made)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: Generator | None = None) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        init.uniform_(self.weight, -bound, bound, generator)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound, generator)

    def forward(self, x: Any) -> Any:
        """Return x Wᵀ + b."""
        return ops.linear(x, self.weight, self.bias)

    def can_fuse(self, following: Module) -> bool:
        """Return whether a ReLU follows and no hook reads the value between."""
        return isinstance(following, ReLU) and not (self.has_hooks() or following.has_hooks())

    def forward_fused(self, x: Any) -> Any:
        """Return max(x Wᵀ + b, 0)."""
        return ops.linear_relu(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Show sizes."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


@final
class MLP(Module):
    """Stack linear layers with ReLU between them.

    Args:
        sizes: Features before, between and after the layers, for instance (1677, 512, 256, 1).
        final_relu: Whether ReLU follows the last layer too.
        device: Where the parameters live.
        dtype: Of the parameters.
        generator: Where initial values come from.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        final_relu: bool = False,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"an MLP needs two sizes or more, got {list(sizes)}")
        self.final_relu = final_relu
        self.layers = ModuleList(
            Linear(m, n, device=device, dtype=dtype, generator=generator)
            for m, n in itertools.pairwise(sizes)
        )

    def forward(self, x: Any) -> Any:
        """Return the last layer's result, [..., sizes[-1]]."""
        last = -1 if self.final_relu else len(self.layers) - 1
        for position, layer in enumerate(self.layers):
            if position == last:
                x = layer(x)
            elif layer.has_hooks():
                x = ops.relu(layer(x))
            else:
                x = layer.forward_fused(x)
        return x
