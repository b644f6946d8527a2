"""The methods of Tensor that put elements in another order, repeat them or add them elsewhere."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd import inplace, ops
from gradmesh.engine.autograd.integer_operators import IntegerOperators


class Rearranging(IntegerOperators):
    """Give Tensor sorting, flipping, repeating and scattering."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return the elements in order along an axis, and where they were."""
        return ops.sort(self, dim, descending, stable)

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return where the elements in order along an axis are."""
        return ops.argsort(self, dim, descending, stable)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """Return the k largest (or smallest) elements along an axis, and where they were."""
        return ops.topk(self, k, dim, largest, sorted)

    def flip(self, *dims: Any) -> Any:
        """Return a copy with the elements along some axes in reverse order."""
        return ops.flip(self, _given("flip", dims))

    def repeat(self, *counts: Any) -> Any:
        """Return the tensor repeated along each axis."""
        return ops.repeat(self, _given("repeat", counts))

    def tile(self, *dims: Any) -> Any:
        """Return the tensor repeated along its last axes."""
        return ops.tile(self, _given("tile", dims))

    def scatter_add(self, dim: int, index: Any, src: Any) -> Any:
        """Return the tensor with elements of another added at places given by an index."""
        return ops.scatter_add(self, dim, index, src)

    def scatter_add_(self, dim: int, index: Any, src: Any) -> Any:
        """Add elements of another tensor in place, at places given by an index."""
        return inplace.change(self, lambda x, added: ops.scatter_add(x, dim, index, added), src)

    def masked_select(self, mask: Any) -> Any:
        """Return the elements where the mask is true, along one axis."""
        return ops.masked_select(self, mask)


def _given(name: str, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return numbers given one by one or as one sequence."""
    if not numbers:
        raise TypeError(f"{name}: needs a number for an axis at least, or a sequence of them")
    return tuple(numbers[0]) if isinstance(numbers[0], (tuple, list)) else numbers
