"""Elementwise work of layers in one pass over memory: bias with ReLU, losses, erf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit

# Rows that are summed one after the other in float32; longer runs lose digits.
_BLOCK = 64


@jit
def bias_add(out: Any, bias: Any, has_relu: Any) -> None:
    """Add a bias to every row of out [n, dim] in place, then take max(x, 0) if asked."""
    zero = out.dtype.type(0)
    for i in range(out.shape[0]):
        row = out[i]
        if has_relu:
            for j in range(row.shape[0]):
                x = row[j] + bias[j]
                # Written so that NaN stays NaN, as numpy's and torch's maximum do.
                row[j] = zero if x < zero else x
        else:
            for j in range(row.shape[0]):
                row[j] += bias[j]


@inline
def _mask_row(given: Any, result: Any, kept: Any, sums: Any) -> None:
    zero = given.dtype.type(0)
    for j in range(given.shape[0]):
        # Written so that the gradient passes where the result is NaN, as in torch.
        x = zero if result[j] <= zero else given[j]
        kept[j] = x
        sums[j] += x


@jit
def relu_backward(grad: Any, out: Any, masked: Any, bias_grad: Any) -> None:
    """Put the gradient before a ReLU into masked, and its sum over rows into bias_grad."""
    zero = grad.dtype.type(0)
    if grad.shape[0] <= _BLOCK:
        bias_grad[:] = zero
        for i in range(grad.shape[0]):
            _mask_row(grad[i], out[i], masked[i], bias_grad)
        return
    sums = np.zeros(bias_grad.shape[0])
    part = np.empty_like(bias_grad)
    for first in range(0, grad.shape[0], _BLOCK):
        part[:] = zero
        for i in range(first, min(first + _BLOCK, grad.shape[0])):
            _mask_row(grad[i], out[i], masked[i], part)
        sums += part
    bias_grad[:] = sums


@jit
def relu_select(grad: Any, out: Any, masked: Any) -> None:
    """Put the gradient before a ReLU into masked, all [n]; a product would make inf * 0 NaN."""
    zero = grad.dtype.type(0)
    for i in range(grad.shape[0]):
        masked[i] = zero if out[i] <= zero else grad[i]


@inline
def _add_row(row: Any, sums: Any) -> None:
    for j in range(row.shape[0]):
        sums[j] += row[j]


@jit
def column_sum(rows: Any, total: Any) -> None:
    """Put the sum over rows [n, dim] into total, block by block of rows."""
    zero = rows.dtype.type(0)
    if rows.shape[0] <= _BLOCK:
        total[:] = zero
        for i in range(rows.shape[0]):
            _add_row(rows[i], total)
        return
    sums = np.zeros(total.shape[0])
    part = np.empty_like(total)
    for first in range(0, rows.shape[0], _BLOCK):
        part[:] = zero
        for i in range(first, min(first + _BLOCK, rows.shape[0])):
            _add_row(rows[i], part)
        sums += part
    total[:] = sums


@jit
def bce_with_logits(x: Any, target: Any, slope: Any, count: Any, out: Any) -> None:
    """Put sigmoid(x) - target into slope, and the loss, summed and divided by count, into out.

    The sum is taken in float64; out has no axes.
    """
    total = 0.0
    for i in range(x.shape[0]):
        v = np.float64(x[i])
        t = np.float64(target[i])
        e = math.exp(-abs(v))
        total += (v if v > 0 else 0.0) - v * t + math.log1p(e)
        slope[i] = (1.0 / (1.0 + e) if v >= 0 else e / (1.0 + e)) - t
    out[()] = total / count


@jit
def mse(x: Any, target: Any, error: Any, count: Any, out: Any) -> None:
    """Put x - target into error, and the sum of its squares divided by count into out.

    The sum is taken in float64.
    """
    total = 0.0
    for i in range(x.shape[0]):
        d = x[i] - target[i]
        error[i] = d
        total += np.float64(d) * np.float64(d)
    out[()] = total / count


@jit
def _erf(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = math.erf(x[i])


def erf(x: Any) -> Any:
    """Return the error function of each element."""
    if not isinstance(x, (np.ndarray, np.generic)):
        from gradmesh.engine.backend.cuda import special_module

        return special_module().erf(x)
    wide = np.ascontiguousarray(x, dtype=np.float64 if x.dtype == np.float64 else np.float32)
    out = np.empty(x.size, dtype=wide.dtype)
    _erf(wide.reshape(-1), out)
    return out.reshape(x.shape).astype(x.dtype, copy=False)
