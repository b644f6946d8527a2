"""Functions that create tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmesh.engine.autograd.ops.broadcast import as_number
from gradmesh.engine.autograd.tensor import Tensor
from gradmesh.engine.backend import (
    Array,
    Generator,
    as_array,
    as_device,
    default_generator,
    to_device,
)
from gradmesh.engine.backend.dtype import as_dtype, bool_, float32, int64, is_float


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor with a copy of the data.

    Args:
        data: Number, nested sequence, array or tensor.
        dtype: Of the result; Python floats become float32, arrays keep theirs.
        device: Where it lives, the CPU by default.
        requires_grad: Whether backward passes compute its gradient.
    """
    if isinstance(data, Tensor):
        data = data.data
    array = as_array(data.copy()) if hasattr(data, "strides") else _from_python(data)
    if dtype is not None:
        array = array.astype(as_dtype(dtype), copy=False)
    return Tensor(_placed(array, device), requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of the data, on the same memory where possible."""
    if isinstance(data, Tensor):
        return data if dtype is None and device is None else data.to(dtype=dtype, device=device)
    array = as_array(data) if hasattr(data, "strides") else _from_python(data)
    if dtype is not None:
        array = array.astype(as_dtype(dtype), copy=False)
    return Tensor(_placed(array, device))


def from_numpy(array: Any) -> Tensor:
    """Return a tensor that shares the memory of a numpy array; a numpy scalar is copied."""
    as_dtype(array.dtype)
    return Tensor(as_array(array))


def _from_python(data: Any) -> Array:
    array = np.array(data)
    if array.dtype == np.float64 and not isinstance(data, np.generic):
        return array.astype(float32)
    if array.dtype not in (bool_, int64) and not is_float(array.dtype):
        as_dtype(array.dtype)
    return array


def _placed(array: Array, device: Any) -> Array:
    return array if device is None else to_device(array, as_device(device))


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with one value."""
    fill_value = as_number(fill_value)
    default = float32 if isinstance(fill_value, float) else np.asarray(fill_value).dtype
    array = np.full(tuple(shape), fill_value, dtype=default if dtype is None else as_dtype(dtype))
    return Tensor(_placed(array, device), requires_grad)


def zeros(
    *shape: Any, dtype: Any = float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of zeros."""
    return Tensor(_placed(np.zeros(_shape(shape), as_dtype(dtype)), device), requires_grad)


def ones(
    *shape: Any, dtype: Any = float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of ones."""
    return Tensor(_placed(np.ones(_shape(shape), as_dtype(dtype)), device), requires_grad)


def empty(
    *shape: Any, dtype: Any = float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor with uninitialized values."""
    return Tensor(_placed(np.empty(_shape(shape), as_dtype(dtype)), device), requires_grad)


def arange(*bounds: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return evenly spaced numbers from start (0) to end, exclusive, in steps (of 1)."""
    default = float32 if any(isinstance(b, float) for b in bounds) else int64
    return Tensor(_placed(np.arange(*bounds, dtype=dtype or default), device))


def zeros_like(other: Tensor) -> Tensor:
    """Return zeros of another tensor's shape, dtype and device."""
    return Tensor(_placed(np.zeros(other.shape, other.dtype), other.device))


def ones_like(other: Tensor) -> Tensor:
    """Return ones of another tensor's shape, dtype and device."""
    return Tensor(_placed(np.ones(other.shape, other.dtype), other.device))


def rand(
    *shape: Any,
    dtype: Any = float32,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Return random numbers from a uniform distribution over [0, 1)."""
    drawn = (generator or default_generator()).uniform(0.0, 1.0, _shape(shape))
    return Tensor(_placed(drawn.astype(as_dtype(dtype)), device), requires_grad)


def randn(
    *shape: Any,
    dtype: Any = float32,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Return random numbers from the standard normal distribution."""
    drawn = (generator or default_generator()).normal(0.0, 1.0, _shape(shape))
    return Tensor(_placed(drawn.astype(as_dtype(dtype)), device), requires_grad)


def randint(
    low: int,
    high: int,
    shape: Sequence[int],
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Return random int64 numbers from a uniform distribution over [low, high)."""
    drawn = (generator or default_generator()).integers(low, high, tuple(shape))
    return Tensor(_placed(drawn, device))
