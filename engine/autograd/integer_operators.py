"""The operators of Tensor that torch users type on counts and masks: `~ & | ^ % //`."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd import inplace, ops
from gradmesh.engine.autograd.operators import Operators


class IntegerOperators(Operators):
    """Give Tensor floor division, remainders and logic."""

    __slots__ = ()

    def __invert__(self) -> Any:
        return ops.bitwise_not(self)

    def __and__(self, other: Any) -> Any:
        return ops.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return ops.bitwise_and(other, self)

    def __or__(self, other: Any) -> Any:
        return ops.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return ops.bitwise_or(other, self)

    def __xor__(self, other: Any) -> Any:
        return ops.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Any:
        return ops.bitwise_xor(other, self)

    def __mod__(self, other: Any) -> Any:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops.remainder(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops.floor_divide(other, self)

    def __iand__(self, other: Any) -> Any:
        return inplace.change(self, ops.bitwise_and, other)

    def __ior__(self, other: Any) -> Any:
        return inplace.change(self, ops.bitwise_or, other)

    def __ixor__(self, other: Any) -> Any:
        return inplace.change(self, ops.bitwise_xor, other)

    def __imod__(self, other: Any) -> Any:
        return inplace.change(self, ops.remainder, other)

    def __ifloordiv__(self, other: Any) -> Any:
        return inplace.change(self, ops.floor_divide, other)

    def remainder(self, other: Any) -> Any:
        """Return what floor division leaves, with the sign of the divisor."""
        return ops.remainder(self, other)

    def remainder_(self, other: Any) -> Any:
        """Keep what floor division leaves in place."""
        return inplace.change(self, ops.remainder, other)

    def floor_divide(self, other: Any) -> Any:
        """Return the quotient rounded down."""
        return ops.floor_divide(self, other)

    def floor_divide_(self, other: Any) -> Any:
        """Divide in place, rounding down."""
        return inplace.change(self, ops.floor_divide, other)

    def bitwise_not(self) -> Any:
        """Return the other bits, or the opposite of truth values."""
        return ops.bitwise_not(self)

    def bitwise_and(self, other: Any) -> Any:
        """Return the bits that both have."""
        return ops.bitwise_and(self, other)

    def bitwise_or(self, other: Any) -> Any:
        """Return the bits that either has."""
        return ops.bitwise_or(self, other)

    def bitwise_xor(self, other: Any) -> Any:
        """Return the bits that exactly one has."""
        return ops.bitwise_xor(self, other)

    def logical_not(self) -> Any:
        """Tell where the elements are false, or 0."""
        return ops.logical_not(self)

    def logical_and(self, other: Any) -> Any:
        """Tell where both are true, or not 0."""
        return ops.logical_and(self, other)

    def logical_or(self, other: Any) -> Any:
        """Tell where either is true, or not 0."""
        return ops.logical_or(self, other)

    def logical_xor(self, other: Any) -> Any:
        """Tell where exactly one is true, or not 0."""
        return ops.logical_xor(self, other)
