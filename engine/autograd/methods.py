"""The named methods of Tensor, under torch's names; most are one call of an op."""

from __future__ import annotations

import math
from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd import ops
from gradmesh.engine.autograd.operators import Operators
from gradmesh.engine.autograd.ops.arguments import axes_of, axis_of
from gradmesh.engine.autograd.ops.reduction import arg_extreme
from gradmesh.engine.autograd.ops.shape import copy as copy_op
from gradmesh.engine.autograd.ops.shape import flatten
from gradmesh.engine.backend import (
    Device,
    DimError,
    DtypeError,
    ShapeError,
    array_module,
    as_array,
    as_device,
)
from gradmesh.engine.backend.dtype import as_dtype, bool_, result_dtype


class Methods(Operators):
    """Give Tensor torch's methods; meaningless without Tensor's data."""

    __slots__ = ()

    @property
    def T(self) -> Any:  # noqa: N802 - torch's name
        """Return the tensor with its axes reversed."""
        return ops.permute(self, tuple(reversed(range(self.ndim))))

    def t(self) -> Any:
        """Return a matrix with its axes swapped; a vector as it is."""
        if self.ndim > 2:
            raise ShapeError(f"t: a tensor of shape {tuple(self.shape)} is not a matrix")
        return ops.permute(self, tuple(reversed(range(self.ndim))))

    def add(self, other: Any, *, alpha: float = 1) -> Any:
        """Return the sum, the other operand times alpha."""
        return ops.add(self, other if alpha == 1 else _scaled_operand("add", self, other, alpha))

    def sub(self, other: Any, *, alpha: float = 1) -> Any:
        """Return the difference, the other operand times alpha."""
        return ops.sub(self, other if alpha == 1 else _scaled_operand("sub", self, other, alpha))

    def mul(self, other: Any) -> Any:
        """Return the product, element by element."""
        return ops.mul(self, other)

    def div(self, other: Any) -> Any:
        """Return the quotient, element by element."""
        return ops.div(self, other)

    def neg(self) -> Any:
        """Return the negative."""
        return ops.neg(self)

    def pow(self, other: Any) -> Any:
        """Return each element to a power."""
        return ops.pow(self, other)

    def remainder(self, other: Any) -> Any:
        """Return what floor division leaves, with the sign of the divisor."""
        return ops.remainder(self, other)

    def floor_divide(self, other: Any) -> Any:
        """Return the quotient rounded down."""
        return ops.floor_divide(self, other)

    def matmul(self, other: Any) -> Any:
        """Return the matrix product."""
        return ops.matmul(self, other)

    def mm(self, other: Any) -> Any:
        """Return the product of two matrices."""
        return _matmul_of("mm", 2, self, other)

    def bmm(self, other: Any) -> Any:
        """Return the products of two stacks of matrices."""
        return _matmul_of("bmm", 3, self, other)

    def dot(self, other: Any) -> Any:
        """Return the product of two vectors."""
        return _matmul_of("dot", 1, self, other)

    def exp(self) -> Any:
        """Return e to the power of each element."""
        return ops.exp(self)

    def log(self) -> Any:
        """Return the natural logarithm of each element."""
        return ops.log(self)

    def log1p(self) -> Any:
        """Return the natural logarithm of 1 + x, exact for small x."""
        return ops.log1p(self)

    def sqrt(self) -> Any:
        """Return the square root of each element."""
        return ops.sqrt(self)

    def rsqrt(self) -> Any:
        """Return 1 over the square root of each element."""
        return ops.div(1, ops.sqrt(self))

    def reciprocal(self) -> Any:
        """Return 1 over each element."""
        return ops.div(1, self)

    def square(self) -> Any:
        """Return the square of each element."""
        return ops.mul(self, self) if self.dtype != bool_ else ops.pow(self, 2)

    def sin(self) -> Any:
        """Return the sine."""
        return ops.sin(self)

    def cos(self) -> Any:
        """Return the cosine."""
        return ops.cos(self)

    def erf(self) -> Any:
        """Return the error function."""
        return ops.erf(self)

    def abs(self) -> Any:
        """Return the absolute value of each element."""
        return ops.abs(self)

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        """Return each element, limited to [min, max]."""
        return ops.clamp(self, min, max)

    def relu(self) -> Any:
        """Return max(x, 0)."""
        return ops.relu(self)

    def sigmoid(self) -> Any:
        """Return 1 / (1 + exp(-x))."""
        return ops.sigmoid(self)

    def tanh(self) -> Any:
        """Return the hyperbolic tangent."""
        return ops.tanh(self)

    def sum(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return the sum over all elements or over some axes."""
        return ops.sum(self, dim, keepdim)

    def mean(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return the mean over all elements or over some axes."""
        return ops.mean(self, dim, keepdim)

    def var(self, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        """Return the variance over all elements or over some axes."""
        return ops.var(self, dim, correction, keepdim)

    def std(self, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        """Return the standard deviation."""
        return ops.std(self, dim, correction, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return the largest element of all, or (values, indices) along an axis."""
        return ops.max(self, dim, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return the smallest element of all, or (values, indices) along an axis."""
        return ops.min(self, dim, keepdim)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return where the largest element is, of all or along an axis."""
        return tensor_module.Tensor(arg_extreme("argmax", self, dim, keepdim))

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return where the smallest element is, along an axis or in the flattened tensor."""
        return tensor_module.Tensor(arg_extreme("argmin", self, dim, keepdim))

    def any(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return whether an element is true, or not 0."""
        axes = axes_of("any", dim, self.ndim) if dim != () else ()
        return tensor_module.Tensor(as_array(self.data.any(axis=axes, keepdims=keepdim)))

    def all(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return whether all elements are true, or not 0."""
        axes = axes_of("all", dim, self.ndim) if dim != () else ()
        return tensor_module.Tensor(as_array(self.data.all(axis=axes, keepdims=keepdim)))

    def prod(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the product of all elements or along an axis."""
        return ops.prod(self, dim, keepdim)

    def cumsum(self, dim: int) -> Any:
        """Return the running sums along an axis."""
        return ops.cumsum(self, dim)

    def norm(self, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Any:
        """Return the p-norm, by default the root of the sum of squares."""
        return ops.norm(self, p, dim, keepdim)

    def softmax(self, dim: int = -1) -> Any:
        """Return softmax along an axis."""
        return ops.softmax(self, dim)

    def log_softmax(self, dim: int = -1) -> Any:
        """Return the logarithm of softmax along an axis."""
        return ops.log_softmax(self, dim)

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Any:
        """Return the logarithm of the sum of exponentials along an axis, without overflow."""
        return ops.logsumexp(self, dim, keepdim)

    def isnan(self) -> Any:
        """Return for each element whether it is NaN."""
        return tensor_module.Tensor(as_array(array_module(self.data).isnan(self.data)))

    def isinf(self) -> Any:
        """Return where the elements are infinite."""
        return tensor_module.Tensor(as_array(array_module(self.data).isinf(self.data)))

    def isfinite(self) -> Any:
        """Return where the elements are neither infinite nor NaN."""
        return tensor_module.Tensor(as_array(array_module(self.data).isfinite(self.data)))

    def eq(self, other: Any) -> Any:
        """Return where the elements are equal."""
        return self == other

    def ne(self, other: Any) -> Any:
        """Return where the elements differ."""
        return self != other

    def lt(self, other: Any) -> Any:
        """Return where the elements are smaller."""
        return self < other

    def le(self, other: Any) -> Any:
        """Return where the elements are smaller or equal."""
        return self <= other

    def gt(self, other: Any) -> Any:
        """Return where the elements are larger."""
        return self > other

    def ge(self, other: Any) -> Any:
        """Return where the elements are larger or equal."""
        return self >= other

    def logical_not(self) -> Any:
        """Return where the elements are false, or 0."""
        return ops.logical_not(self)

    def logical_and(self, other: Any) -> Any:
        """Return where both are true, or not 0."""
        return ops.logical_and(self, other)

    def logical_or(self, other: Any) -> Any:
        """Return where either is true, or not 0."""
        return ops.logical_or(self, other)

    def logical_xor(self, other: Any) -> Any:
        """Return where exactly one is true, or not 0."""
        return ops.logical_xor(self, other)

    def bitwise_not(self) -> Any:
        """Return the inverted bits, or the negation of bools."""
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

    def reshape(self, *shape: Any) -> Any:
        """Return the tensor in another shape, a view where possible."""
        return ops.reshape(self, _unpacked(shape))

    def view(self, *shape: Any) -> Any:
        """Return the tensor in another shape."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Return the tensor with some axes merged into one."""
        return flatten(self, start_dim, end_dim)

    def transpose(self, dim0: int, dim1: int) -> Any:
        """Return a view with two axes swapped."""
        return ops.transpose(self, dim0, dim1)

    def permute(self, *axes: Any) -> Any:
        """Return a view with the axes in another order."""
        return ops.permute(self, _unpacked(axes))

    def squeeze(self, dim: Any = None) -> Any:
        """Return a view without axes of length 1."""
        return ops.squeeze(self, dim)

    def unsqueeze(self, dim: int) -> Any:
        """Return a view with a new axis of length 1."""
        return ops.unsqueeze(self, dim)

    def expand(self, *shape: Any) -> Any:
        """Return the tensor repeated to a shape it broadcasts to."""
        return ops.broadcast_to(self, _unpacked(shape))

    def repeat(self, *counts: Any) -> Any:
        """Return the tensor repeated along each axis."""
        return ops.repeat(self, _required("repeat", counts))

    def tile(self, *dims: Any) -> Any:
        """Return the tensor repeated along its last axes."""
        return ops.tile(self, _required("tile", dims))

    def flip(self, *dims: Any) -> Any:
        """Return a copy with the elements along some axes in reverse order."""
        return ops.flip(self, _required("flip", dims))

    def split(self, lengths: Any, dim: int = 0) -> Any:
        """Return consecutive pieces along an axis."""
        return ops.split(self, lengths, dim)

    def chunk(self, chunks: int, dim: int = 0) -> Any:
        """Return at most `chunks` pieces along an axis."""
        return ops.chunk(self, chunks, dim)

    def unbind(self, dim: int = 0) -> Any:
        """Return the slices along an axis, without that axis."""
        return ops.unbind(self, dim)

    def narrow(self, dim: int, start: int, length: int) -> Any:
        """Return a view of some consecutive slices along an axis."""
        axis = axis_of("narrow", dim, self.ndim)
        count = self.shape[axis] if self.ndim else 0
        if not 0 <= start <= start + length <= count:
            raise IndexError(
                f"narrow: start {start} and length {length} do not fit an axis of length {count}"
            )
        return ops.getitem(self, (*[slice(None)] * axis, slice(start, start + length)))

    def index_select(self, dim: int, index: Any) -> Any:
        """Return the slices along an axis that an index of one axis names."""
        axis = axis_of("index_select", dim, self.ndim)
        _check_index(index, self.shape[axis] if self.ndim else 1)
        if not self.ndim:
            if math.prod(index.shape) != 1:
                raise ShapeError(
                    f"index_select: an index of shape {tuple(index.shape)} for one element"
                )
            return ops.getitem(ops.reshape(self, (1,)), index.reshape(-1)).reshape(())
        return ops.getitem(self, (*[slice(None)] * axis, index.reshape(-1)))

    def gather(self, dim: int, index: Any) -> Any:
        """Return elements picked by an index along an axis."""
        return ops.gather(self, dim, index)

    def scatter_add(self, dim: int, index: Any, src: Any) -> Any:
        """Return the tensor with elements of another added at positions given by an index."""
        return ops.scatter_add(self, dim, index, src)

    def masked_fill(self, mask: Any, value: Any) -> Any:
        """Return the tensor with a value where the mask is true."""
        return ops.masked_fill(self, mask, value)

    def masked_select(self, mask: Any) -> Any:
        """Return the elements where the mask is true, along one axis."""
        return ops.masked_select(self, mask)

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return the elements in order along an axis, and where they were."""
        return ops.sort(self, dim, descending, stable)

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return where the elements in order along an axis are."""
        return ops.argsort(self, dim, descending, stable)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """Return the k largest (or smallest) elements along an axis, and where they were."""
        return ops.topk(self, k, dim, largest, sorted)

    def clone(self) -> Any:
        """Return a copy that the gradient flows through."""
        return copy_op(self)

    def contiguous(self) -> Any:
        """Return the tensor in row-major memory, itself if it is."""
        return self if self.data.flags.c_contiguous else copy_op(self)

    def to(self, target: Any = None, dtype: Any = None, device: Any = None) -> Any:
        """Return the tensor in a dtype or on a device, itself if it is there already."""
        if isinstance(target, Device) or (isinstance(target, str) and target[:3] in ("cpu", "cud")):
            device = target
        elif target is not None:
            dtype = target
        wanted = None if dtype is None else as_dtype(dtype)
        wanted_device = None if device is None else as_device(device)
        # Not `in (None, ...)`: numpy takes None for float64 when it compares dtypes.
        has_dtype = wanted is None or wanted == self.dtype
        if has_dtype and (wanted_device is None or wanted_device == self.device):
            return self
        return copy_op(self, wanted, wanted_device)

    def cpu(self) -> Any:
        """Return the tensor in host memory."""
        return self.to(device="cpu")

    def cuda(self, index: int = 0) -> Any:
        """Return the tensor on a GPU."""
        return self.to(device=f"cuda:{index}")

    def half(self) -> Any:
        """Return the tensor as float16."""
        return self.to("float16")

    def bfloat16(self) -> Any:
        """Return the tensor as bfloat16."""
        return self.to("bfloat16")

    def float(self) -> Any:
        """Return the tensor as float32."""
        return self.to("float32")

    def double(self) -> Any:
        """Return the tensor as float64."""
        return self.to("float64")

    def int(self) -> Any:
        """Return the tensor as int32."""
        return self.to("int32")

    def long(self) -> Any:
        """Return the tensor as int64."""
        return self.to("int64")

    def bool(self) -> Any:
        """Return the tensor as bool."""
        return self.to("bool")


def _check_index(index: Any, length: int) -> None:
    """Raise if an index is not of one axis, of integers, or not within a length."""
    if index.dtype.kind not in "iu":
        raise DtypeError(f"index_select: an index is of integers, not {index.dtype}")
    if index.ndim > 1:
        raise DimError(f"index_select: an index has one axis, not shape {tuple(index.shape)}")
    positions = index.data if isinstance(index, tensor_module.Tensor) else index
    if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= length):
        raise IndexError(f"index_select: an index is out of range for an axis of length {length}")


def _matmul_of(name: str, ndim: int, left: Any, right: Any) -> Any:
    if left.ndim != ndim or right.ndim != ndim:
        shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
        raise ShapeError(f"{name}: takes tensors with {ndim} axes, not {shapes}")
    return ops.matmul(left, right)


def _scaled_operand(name: str, x: Any, other: Any, alpha: float) -> Any:
    """Return the other operand times alpha; alpha does not change the dtype of the result."""
    is_tensor = isinstance(other, tensor_module.Tensor)
    dtype = result_dtype(x.data, other.data if is_tensor else other)
    if dtype.kind in "iub" and isinstance(alpha, float):
        raise DtypeError(f"{name}: alpha is {alpha}, but the result is of {dtype}; use an integer")
    if not is_tensor:
        return other * alpha
    if dtype.kind == "b":
        return other if alpha else ops.mul(other, False)
    return ops.mul(other if other.dtype == dtype else other.to(dtype), alpha)


def _unpacked(numbers: Any) -> Any:
    """Return numbers given one by one or as one sequence."""
    return tuple(numbers[0]) if numbers and isinstance(numbers[0], (tuple, list)) else numbers


def _required(name: str, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return numbers given one by one or as one sequence."""
    if not numbers:
        raise TypeError(f"{name}: needs a number for an axis at least, or a sequence of them")
    return tuple(numbers[0]) if isinstance(numbers[0], (tuple, list)) else numbers
