"""Float dtypes in ops: conversion, checks, and sums that keep their digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array, DtypeError
from gradmesh.engine.backend.dtype import float32, float64

# numpy's type number of float32: bool and integers have lower ones, all other floats higher ones.
_FIRST_FLOAT = float32.num
# Beyond this many terms numpy's sequential sum loses digits of float32.
_MANY = 4096


def as_float(x: Array) -> Array:
    """Return integers and bools as float32, floats unchanged."""
    return x if x.dtype.num >= _FIRST_FLOAT else x.astype(float32)


def check_float(name: str, x: Array) -> None:
    """Raise DtypeError if an array is not floating point."""
    if x.dtype.num < _FIRST_FLOAT:
        raise DtypeError(f"{name} needs a float tensor, not {x.dtype}; use .float()")


def check_not_bool(name: str, x: Array) -> None:
    """Raise DtypeError if an array is bool."""
    if x.dtype.num == 0:
        raise DtypeError(f"{name} does not take bool; use .int() or .float()")


def wide(x: Array) -> Array:
    """Return half precision as float32, to sum it up and round once; the rest as it is."""
    return x if x.dtype.num <= float64.num else x.astype(float32)


def total(x: Array, axis: Any, keepdims: bool = False) -> Array:
    """Return sums of floats over axes, of half precision taken in float32 and rounded once."""
    number = x.dtype.num
    if number > float64.num:
        return x.sum(axis=axis, keepdims=keepdims, dtype=float32).astype(x.dtype)
    if number == float32.num and x.size >= _MANY and isinstance(x, np.ndarray):
        axes = {a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
        if _terms(x, axes) >= _MANY:
            return _long_total(x, axes, axis, keepdims)
    return x.sum(axis=axis, keepdims=keepdims)


def _terms(x: Array, axes: set[int]) -> int:
    """Return how many terms numpy adds to each sum, one after the other.

    Along the axes that are next to each other in memory it sums in pairs, as one term, which is
    exact enough. It does so only if the innermost axis is one of those that are summed.
    """
    count: int = math.prod(x.shape[a] for a in axes)
    if count < _MANY:
        return count
    run, stride = 1, 0
    for a in sorted((a for a in range(x.ndim) if x.shape[a] > 1), key=lambda a: abs(x.strides[a])):
        if a not in axes or (stride and abs(x.strides[a]) != stride):
            break
        run *= x.shape[a]
        stride = abs(x.strides[a]) * x.shape[a]
    return count // run


def _long_total(x: Array, axes: set[int], axis: Any, keepdims: bool) -> Array:
    """Return sums of many terms of float32."""
    first = len(axes)
    if x.flags.c_contiguous and axes == set(range(first)) and first < x.ndim:
        rows = x.reshape(math.prod(x.shape[:first]), -1)
        sums = np.empty(rows.shape[1], dtype=x.dtype)
        kernels.fused.column_sum(rows, sums)
        return sums.reshape((1,) * first + x.shape[first:] if keepdims else x.shape[first:])
    # A conversion of every element; twice the time of a sum.
    return x.sum(axis=axis, keepdims=keepdims, dtype=float64).astype(float32)
