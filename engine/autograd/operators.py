"""The operators and methods of Tensor; each is one call of an op."""

from __future__ import annotations

from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd import inplace, ops
from gradmesh.engine.autograd.ops.arguments import axes_of
from gradmesh.engine.autograd.ops.broadcast import align, as_number
from gradmesh.engine.autograd.ops.reduction import arg_extreme
from gradmesh.engine.autograd.ops.shape import copy as copy_op
from gradmesh.engine.autograd.ops.shape import flatten
from gradmesh.engine.backend import Device, array_module, as_array, as_device
from gradmesh.engine.backend.dtype import as_dtype


class Operators:
    """Give Tensor its arithmetic; meaningless without Tensor's data."""

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

    def __getitem__(self, index: Any) -> Any:
        return ops.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        inplace.set_items(self, index, value)

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

    @property
    def T(self) -> Any:  # noqa: N802 - torch's name
        """Give the tensor with its axes reversed."""
        return ops.permute(self, tuple(reversed(range(self.ndim))))

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

    def sum(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return the sum over all elements or over some axes."""
        return ops.sum(self, dim, keepdim)

    def mean(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Return the mean over all elements or over some axes."""
        return ops.mean(self, dim, keepdim)

    def var(self, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        """Return the variance over all elements or over some axes."""
        return ops.var(self, dim, correction, keepdim)

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
        """Tell whether an element is true, or not 0."""
        axes = axes_of("any", dim, self.ndim) if dim != () else ()
        return tensor_module.Tensor(as_array(self.data.any(axis=axes, keepdims=keepdim)))

    def all(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Tell whether all elements are true, or not 0."""
        axes = axes_of("all", dim, self.ndim) if dim != () else ()
        return tensor_module.Tensor(as_array(self.data.all(axis=axes, keepdims=keepdim)))

    def isnan(self) -> Any:
        """Tell for each element whether it is no number."""
        return tensor_module.Tensor(as_array(array_module(self.data).isnan(self.data)))

    def matmul(self, other: Any) -> Any:
        """Return the matrix product."""
        return ops.matmul(self, other)

    def exp(self) -> Any:
        """Return e to the power of each element."""
        return ops.exp(self)

    def log(self) -> Any:
        """Return the natural logarithm of each element."""
        return ops.log(self)

    def sqrt(self) -> Any:
        """Return the square root of each element."""
        return ops.sqrt(self)

    def abs(self) -> Any:
        """Return the absolute value of each element."""
        return ops.abs(self)

    def pow(self, other: Any) -> Any:
        """Return each element to a power."""
        return ops.pow(self, other)

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

    def softmax(self, dim: int = -1) -> Any:
        """Return softmax along an axis."""
        return ops.softmax(self, dim)

    def log_softmax(self, dim: int = -1) -> Any:
        """Return the logarithm of softmax along an axis."""
        return ops.log_softmax(self, dim)

    def reshape(self, *shape: Any) -> Any:
        """Return the tensor in another shape, a view where possible."""
        return ops.reshape(self, _spelled(shape))

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
        return ops.permute(self, _spelled(axes))

    def squeeze(self, dim: Any = None) -> Any:
        """Return a view without axes of length 1."""
        return ops.squeeze(self, dim)

    def unsqueeze(self, dim: int) -> Any:
        """Return a view with a new axis of length 1."""
        return ops.unsqueeze(self, dim)

    def expand(self, *shape: Any) -> Any:
        """Return the tensor repeated to a shape it broadcasts to."""
        return ops.broadcast_to(self, _spelled(shape))

    def split(self, lengths: Any, dim: int = 0) -> Any:
        """Return consecutive pieces along an axis."""
        return ops.split(self, lengths, dim)

    def chunk(self, chunks: int, dim: int = 0) -> Any:
        """Return at most so many pieces along an axis."""
        return ops.chunk(self, chunks, dim)

    def unbind(self, dim: int = 0) -> Any:
        """Return the slices along an axis, without that axis."""
        return ops.unbind(self, dim)

    def gather(self, dim: int, index: Any) -> Any:
        """Return elements picked by an index along an axis."""
        return ops.gather(self, dim, index)

    def masked_fill(self, mask: Any, value: Any) -> Any:
        """Return the tensor with a value where the mask is true."""
        return ops.masked_fill(self, mask, value)

    def norm(self, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Any:
        """Return the p-norm, by default the root of the sum of squares."""
        return ops.norm(self, p, dim, keepdim)

    def std(self, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        """Return the standard deviation."""
        return ops.std(self, dim, correction, keepdim)

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
        place = None if device is None else as_device(device)
        # Not `in (None, ...)`: numpy takes None for float64 when it compares dtypes.
        has_dtype = wanted is None or wanted == self.dtype
        if has_dtype and (place is None or place == self.device):
            return self
        return copy_op(self, wanted, place)

    def float(self) -> Any:
        """Return the tensor as float32."""
        return self.to("float32")

    def double(self) -> Any:
        """Return the tensor as float64."""
        return self.to("float64")

    def long(self) -> Any:
        """Return the tensor as int64."""
        return self.to("int64")

    def cpu(self) -> Any:
        """Return the tensor in host memory."""
        return self.to(device="cpu")

    def cuda(self, index: int = 0) -> Any:
        """Return the tensor on a GPU."""
        return self.to(device=f"cuda:{index}")


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


def _spelled(numbers: Any) -> Any:
    """Return numbers given one by one or as one sequence."""
    return tuple(numbers[0]) if numbers and isinstance(numbers[0], (tuple, list)) else numbers
