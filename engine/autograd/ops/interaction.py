"""Feature interactions: DLRM's dot products, DCNv2's cross layer, the factorization machine."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import Array, ShapeError, array_module
from gradmesh.engine.backend.blas import matmul


class _DotInteraction(Function):
    """Multiply each pair of feature vectors of a sample."""

    __slots__ = ("self_too",)

    @staticmethod
    def forward(ctx: Any, x: Array, self_too: bool) -> Array:
        if x.ndim != 3:
            raise ShapeError(f"dot_interaction: needs [batch, features, dim], got {tuple(x.shape)}")
        xp = array_module(x)
        ctx.self_too = self_too
        ctx.save_for_backward(x)
        products = matmul(x, x.transpose(0, 2, 1))
        lower, upper = xp.tril_indices(x.shape[1], 0 if self_too else -1)
        return products[:, lower, upper]

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        xp = array_module(x)
        lower, upper = xp.tril_indices(x.shape[1], 0 if ctx.self_too else -1)
        pairs = xp.zeros((x.shape[0], x.shape[1], x.shape[1]), dtype=x.dtype)
        pairs[:, lower, upper] = grad
        # One symmetric matrix instead of two products; the diagonal counts twice by itself.
        pairs += pairs.transpose(0, 2, 1).copy()
        return matmul(pairs, x), None


def dot_interaction(x: Any, self_interaction: bool = False) -> Any:
    """Return the dot products of all pairs of features, as DLRM does.

    Args:
        x: [batch, features, dim].
        self_interaction: Include each feature with itself.

    Returns:
        [batch, features * (features - 1) / 2], pairs (i, j) with j < i in row order.
    """
    return _DotInteraction.apply(x, self_interaction)


def cross_layer(x0: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return x0 * (x Wᵀ + b) + x, one cross layer of DCNv2."""
    from gradmesh.engine.autograd.ops.linear import linear

    return x0 * linear(x, weight, bias) + x


def factorization_machine(x: Any) -> Any:
    """Return the sum of the dot products of all pairs of features.

    Args:
        x: [batch, features, dim].

    Returns:
        [batch, 1], computed as half of (square of the sum - sum of the squares).
    """
    if x.ndim != 3:
        raise ShapeError(f"factorization_machine: needs [batch, features, dim], got {x.shape}")
    total = x.sum(dim=1)
    squares = (x * x).sum(dim=1)
    return ((total * total - squares) * 0.5).sum(dim=1, keepdim=True)
