"""Batch normalisation in two passes over memory each way, sums kept in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit

_LANES = 8


@jit
def channel_sums(x: Any, pivot: Any, sums: Any, squares: Any) -> None:
    """Put the sums of x [n, channels, area] - pivot [channels] and of its squares into arrays.

    A pivot near the mean keeps the digits of a small variance far from 0.
    """
    first = np.zeros(_LANES, dtype=np.float64)
    second = np.zeros(_LANES, dtype=np.float64)
    area = x.shape[2]
    whole = area - area % _LANES
    for c in range(x.shape[1]):
        first[:] = 0.0
        second[:] = 0.0
        middle = pivot[c]
        for n in range(x.shape[0]):
            row = x[n, c]
            for start in range(0, whole, _LANES):
                for k in range(_LANES):
                    v = np.float64(row[start + k]) - middle
                    first[k] += v
                    second[k] += v * v
            for j in range(whole, area):
                v = np.float64(row[j]) - middle
                first[0] += v
                second[0] += v * v
        sums[c] = first.sum()
        squares[c] = second.sum()


@jit
def scale_shift(x: Any, out: Any, scale: Any, shift: Any) -> None:
    """Put x * scale + shift, per channel, into out."""
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            a, b = scale[c], shift[c]
            row, target = x[n, c], out[n, c]
            for j in range(row.shape[0]):
                target[j] = row[j] * a + b


@jit
def grad_sums(grad: Any, x: Any, mean: Any, sums: Any, products: Any) -> None:
    """Put the sums of grad and of grad * (x - mean) per channel into float64 arrays."""
    first = np.zeros(_LANES, dtype=np.float64)
    second = np.zeros(_LANES, dtype=np.float64)
    area = x.shape[2]
    whole = area - area % _LANES
    for c in range(x.shape[1]):
        first[:] = 0.0
        second[:] = 0.0
        middle = mean[c]
        for n in range(x.shape[0]):
            row, given = x[n, c], grad[n, c]
            for start in range(0, whole, _LANES):
                for k in range(_LANES):
                    g = np.float64(given[start + k])
                    first[k] += g
                    second[k] += g * (np.float64(row[start + k]) - middle)
            for j in range(whole, area):
                g = np.float64(given[j])
                first[0] += g
                second[0] += g * (np.float64(row[j]) - middle)
        sums[c] = first.sum()
        products[c] = second.sum()


@jit
def combine(grad: Any, x: Any, out: Any, of_grad: Any, of_x: Any, constant: Any) -> None:
    """Put grad * of_grad + x * of_x + constant, per channel, into out."""
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            a, b, d = of_grad[c], of_x[c], constant[c]
            row, given, target = x[n, c], grad[n, c], out[n, c]
            for j in range(row.shape[0]):
                target[j] = given[j] * a + row[j] * b + d
