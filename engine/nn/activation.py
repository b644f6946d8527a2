"""Activations and dropout as modules."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn.module import Module


@final
class Identity(Module):
    """Return the input."""

    def forward(self, x: Any) -> Any:
        """Return x."""
        return x


@final
class ReLU(Module):
    """Apply max(x, 0).

    Args:
        inplace: Accepted for compatibility with torch; the result is a new tensor all the same.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Any) -> Any:
        """Return max(x, 0)."""
        return ops.relu(x)


@final
class Sigmoid(Module):
    """Apply 1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        """Return 1 / (1 + exp(-x))."""
        return ops.sigmoid(x)


@final
class Tanh(Module):
    """Apply the hyperbolic tangent."""

    def forward(self, x: Any) -> Any:
        """Return tanh(x)."""
        return ops.tanh(x)


@final
class GELU(Module):
    """Apply the Gaussian error linear unit: x times the normal distribution function of x.

    Args:
        approximate: `"none"` for the exact function, `"tanh"` for the usual approximation.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Return gelu(x)."""
        return ops.gelu(x, self.approximate)


@final
class SiLU(Module):
    """Apply x * sigmoid(x)."""

    def forward(self, x: Any) -> Any:
        """Return x * sigmoid(x)."""
        return ops.silu(x)


@final
class Softmax(Module):
    """Apply softmax along an axis.

    Args:
        dim: The axis.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        """Return softmax(x)."""
        return ops.softmax(x, self.dim)


@final
class LogSoftmax(Module):
    """Apply the logarithm of softmax along an axis.

    Args:
        dim: The axis.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        """Return log_softmax(x)."""
        return ops.log_softmax(x, self.dim)


@final
class LeakyReLU(Module):
    """Apply x where it is positive, else x times negative_slope.

    Args:
        negative_slope: The multiple.
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Any:
        """Return leaky_relu(x)."""
        return ops.leaky_relu(x, self.negative_slope)


@final
class Softplus(Module):
    """Apply log(1 + exp(x))."""

    def forward(self, x: Any) -> Any:
        """Return softplus(x)."""
        return ops.softplus(x)


@final
class Dropout(Module):
    """Set random elements to 0 in training, and scale the others.

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
