"""Python's operators on tensors, and the methods that change a tensor in place."""

from __future__ import annotations

from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd import inplace, ops
from gradmesh.engine.autograd.ops.broadcast import align, as_number
from gradmesh.engine.backend import as_array


class Operators:
    """Give Tensor its operators; meaningless without Tensor's data."""

    __slots__ = ()

    data: Any
    shape: Any
    ndim: Any
    dtype: Any
    device: Any

    def __add__(self, other: Any) -> Any:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return ops.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return ops.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return ops.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return ops.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return ops.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return ops.div(other, self)

    def __pow__(self, other: Any) -> Any:
        return ops.pow(self, other)

    def __rpow__(self, other: Any) -> Any:
        return ops.pow(other, self)

    def __matmul__(self, other: Any) -> Any:
        return ops.matmul(self, other)

    def __neg__(self) -> Any:
        return ops.neg(self)

    def __mod__(self, other: Any) -> Any:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops.remainder(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops.floor_divide(other, self)

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

    def __getitem__(self, index: Any) -> Any:
        return ops.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        inplace.set_items(self, index, value)

    def __eq__(self, other: object) -> Any:
        return _compare(self, "__eq__", other)

    def __ne__(self, other: object) -> Any:
        return _compare(self, "__ne__", other)

    def __lt__(self, other: Any) -> Any:
        return _compare(self, "__lt__", other)

    def __le__(self, other: Any) -> Any:
        return _compare(self, "__le__", other)

    def __gt__(self, other: Any) -> Any:
        return _compare(self, "__gt__", other)

    def __ge__(self, other: Any) -> Any:
        return _compare(self, "__ge__", other)

    # The builtin, not a method of ours: gradients are kept in dicts by tensor.
    __hash__ = object.__hash__

    # Make numpy leave `array + tensor` to __radd__ instead of looping over the tensor.
    __array_ufunc__ = None

    def __iadd__(self, other: Any) -> Any:
        return inplace.change(self, ops.add, other)

    def __isub__(self, other: Any) -> Any:
        return inplace.change(self, ops.sub, other)

    def __imul__(self, other: Any) -> Any:
        return inplace.change(self, ops.mul, other)

    def __itruediv__(self, other: Any) -> Any:
        return inplace.change(self, ops.div, other)

    def __ipow__(self, other: Any) -> Any:
        return inplace.change(self, ops.pow, other)

    def __imod__(self, other: Any) -> Any:
        return inplace.change(self, ops.remainder, other)

    def __ifloordiv__(self, other: Any) -> Any:
        return inplace.change(self, ops.floor_divide, other)

    def __iand__(self, other: Any) -> Any:
        return inplace.change(self, ops.bitwise_and, other)

    def __ior__(self, other: Any) -> Any:
        return inplace.change(self, ops.bitwise_or, other)

    def __ixor__(self, other: Any) -> Any:
        return inplace.change(self, ops.bitwise_xor, other)

    def add_(self, other: Any) -> Any:
        """Add in place."""
        return inplace.change(self, ops.add, other)

    def sub_(self, other: Any) -> Any:
        """Subtract in place."""
        return inplace.change(self, ops.sub, other)

    def mul_(self, other: Any) -> Any:
        """Multiply in place."""
        return inplace.change(self, ops.mul, other)

    def div_(self, other: Any) -> Any:
        """Divide in place."""
        return inplace.change(self, ops.div, other)

    def copy_(self, other: Any) -> Any:
        """Take the values of another tensor in place."""
        return inplace.copy_from(self, other)

    def fill_(self, value: float) -> Any:
        """Set every element in place."""
        return inplace.fill(self, value)

    def zero_(self) -> Any:
        """Set every element to 0 in place."""
        return inplace.fill(self, 0)

    def remainder_(self, other: Any) -> Any:
        """Replace by the remainder of floor division, in place."""
        return inplace.change(self, ops.remainder, other)

    def floor_divide_(self, other: Any) -> Any:
        """Divide in place, rounding down."""
        return inplace.change(self, ops.floor_divide, other)

    def scatter_add_(self, dim: int, index: Any, src: Any) -> Any:
        """Add elements of another tensor in place, at positions given by an index."""
        return inplace.change(self, lambda x, added: ops.scatter_add(x, dim, index, added), src)


def _compare(left: Any, name: str, right: Any) -> Any:
    array = left.data
    operand = right.data if isinstance(right, Operators) else as_number(right)
    # numpy compares with a Python integer exactly, also with one that the dtype cannot hold.
    if type(operand) is not int and (
        isinstance(operand, float) or getattr(operand, "dtype", array.dtype) is not array.dtype
    ):
        array, operand = align(name.strip("_"), array, operand)
    result = getattr(array, name)(operand)
    return NotImplemented if result is NotImplemented else tensor_module.Tensor(as_array(result))
