"""The methods of Tensor that torch users type besides the operators; most are made of other ops."""

from __future__ import annotations

import math
from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd import ops
from gradmesh.engine.autograd.ops.arguments import axis_of
from gradmesh.engine.autograd.rearranging import Rearranging
from gradmesh.engine.backend import DimError, DtypeError, ShapeError, array_module, as_array
from gradmesh.engine.backend.dtype import bool_, result_dtype


class Methods(Rearranging):
    """Give Tensor torch's named arithmetic, comparisons and casts."""

    __slots__ = ()

    def add(self, other: Any, *, alpha: float = 1) -> Any:
        """Return the sum, the other operand times alpha."""
        return ops.add(self, other if alpha == 1 else _multiple("add", self, other, alpha))

    def sub(self, other: Any, *, alpha: float = 1) -> Any:
        """Return the difference, the other operand times alpha."""
        return ops.sub(self, other if alpha == 1 else _multiple("sub", self, other, alpha))

    def mul(self, other: Any) -> Any:
        """Return the product, element by element."""
        return ops.mul(self, other)

    def div(self, other: Any) -> Any:
        """Return the quotient, element by element."""
        return ops.div(self, other)

    def neg(self) -> Any:
        """Return the negative."""
        return ops.neg(self)

    def square(self) -> Any:
        """Return the square of each element."""
        return ops.mul(self, self) if self.dtype != bool_ else ops.pow(self, 2)

    def reciprocal(self) -> Any:
        """Return 1 over each element."""
        return ops.div(1, self)

    def rsqrt(self) -> Any:
        """Return 1 over the square root of each element."""
        return ops.div(1, ops.sqrt(self))

    def log1p(self) -> Any:
        """Return the natural logarithm of 1 + x, exact for small x."""
        return ops.log1p(self)

    def erf(self) -> Any:
        """Return the error function."""
        return ops.erf(self)

    def sin(self) -> Any:
        """Return the sine."""
        return ops.sin(self)

    def cos(self) -> Any:
        """Return the cosine."""
        return ops.cos(self)

    def prod(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the product of all elements or along an axis."""
        return ops.prod(self, dim, keepdim)

    def cumsum(self, dim: int) -> Any:
        """Return the running sums along an axis."""
        return ops.cumsum(self, dim)

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Any:
        """Return the logarithm of the sum of exponentials along an axis, without overflow."""
        return ops.logsumexp(self, dim, keepdim)

    def mm(self, other: Any) -> Any:
        """Return the product of two matrices."""
        return _of_axes("mm", 2, self, other)

    def bmm(self, other: Any) -> Any:
        """Return the products of two stacks of matrices."""
        return _of_axes("bmm", 3, self, other)

    def dot(self, other: Any) -> Any:
        """Return the product of two vectors."""
        return _of_axes("dot", 1, self, other)

    def t(self) -> Any:
        """Return a matrix with its axes swapped; a vector as it is."""
        if self.ndim > 2:
            raise ShapeError(f"t: a tensor of shape {tuple(self.shape)} is no matrix")
        return ops.permute(self, tuple(reversed(range(self.ndim))))

    def index_select(self, dim: int, index: Any) -> Any:
        """Return the slices along an axis that an index of one axis names."""
        axis = axis_of("index_select", dim, self.ndim)
        _check_places(index, self.shape[axis] if self.ndim else 1)
        if not self.ndim:
            if math.prod(index.shape) != 1:
                raise ShapeError(f"index_select: {tuple(index.shape)} places of a single element")
            return ops.getitem(ops.reshape(self, (1,)), index.reshape(-1)).reshape(())
        return ops.getitem(self, (*[slice(None)] * axis, index.reshape(-1)))

    def narrow(self, dim: int, start: int, length: int) -> Any:
        """Return a view of some consecutive slices along an axis."""
        axis = axis_of("narrow", dim, self.ndim)
        places = self.shape[axis] if self.ndim else 0
        if not 0 <= start <= start + length <= places:
            raise IndexError(f"narrow: {start} and {length} more of {places} slices")
        return ops.getitem(self, (*[slice(None)] * axis, slice(start, start + length)))

    def eq(self, other: Any) -> Any:
        """Tell where the elements are equal."""
        return self == other

    def ne(self, other: Any) -> Any:
        """Tell where the elements differ."""
        return self != other

    def lt(self, other: Any) -> Any:
        """Tell where the elements are smaller."""
        return self < other

    def le(self, other: Any) -> Any:
        """Tell where the elements are smaller or equal."""
        return self <= other

    def gt(self, other: Any) -> Any:
        """Tell where the elements are larger."""
        return self > other

    def ge(self, other: Any) -> Any:
        """Tell where the elements are larger or equal."""
        return self >= other

    def isinf(self) -> Any:
        """Tell where the elements are infinite."""
        return tensor_module.Tensor(as_array(array_module(self.data).isinf(self.data)))

    def isfinite(self) -> Any:
        """Tell where the elements are neither infinite nor NaN."""
        return tensor_module.Tensor(as_array(array_module(self.data).isfinite(self.data)))

    def half(self) -> Any:
        """Return the tensor as float16."""
        return self.to("float16")

    def bfloat16(self) -> Any:
        """Return the tensor as bfloat16."""
        return self.to("bfloat16")

    def int(self) -> Any:
        """Return the tensor as int32."""
        return self.to("int32")

    def bool(self) -> Any:
        """Return the tensor as truth values."""
        return self.to("bool")


def _check_places(index: Any, length: int) -> None:
    """Raise if an index is not of one axis, of integers, or not within a length."""
    if index.dtype.kind not in "iu":
        raise DtypeError(f"index_select: an index is of integers, not {index.dtype}")
    if index.ndim > 1:
        raise DimError(f"index_select: an index has one axis, not shape {tuple(index.shape)}")
    places = index.data if isinstance(index, tensor_module.Tensor) else index
    if places.size and (int(places.min()) < 0 or int(places.max()) >= length):
        raise IndexError(f"index_select: an index lies outside the {length} places of the axis")


def _of_axes(name: str, ndim: int, left: Any, right: Any) -> Any:
    if left.ndim != ndim or right.ndim != ndim:
        shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
        raise ShapeError(f"{name}: takes tensors with {ndim} axes, not {shapes}")
    return ops.matmul(left, right)


def _multiple(name: str, x: Any, other: Any, alpha: float) -> Any:
    """Return the other operand times alpha; alpha has no say in the dtype of the result."""
    is_tensor = isinstance(other, tensor_module.Tensor)
    dtype = result_dtype(x.data, other.data if is_tensor else other)
    if dtype.kind in "iub" and isinstance(alpha, float):
        raise DtypeError(f"{name}: alpha is {alpha}, but the result is of {dtype}; use an integer")
    if not is_tensor:
        return other * alpha
    if dtype.kind == "b":
        return other if alpha else ops.mul(other, False)
    return ops.mul(other if other.dtype == dtype else other.to(dtype), alpha)
