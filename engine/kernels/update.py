"""Optimizer updates of rows, one pass over memory each.

A dense parameter is one long row, so dense and sparse updates are the same code and round the
same way. Every kernel takes weights [m, dim], the rows to change (distinct) and their gradients
[n, dim].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit

_LANES = 16


@jit
def sgd(weights: Any, index: Any, grads: Any, lr: Any, decay: Any) -> None:
    """Subtract lr * (grad + decay * weight)."""
    for i in range(index.shape[0]):
        w = weights[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            w[j] -= lr * (g[j] + decay * w[j])


@jit
def momentum(
    weights: Any,
    buffer: Any,
    index: Any,
    grads: Any,
    lr: Any,
    decay: Any,
    beta: Any,
    share: Any,
    nesterov: Any,
) -> None:
    """Follow a running sum of gradients; share is what a new gradient adds to it."""
    for i in range(index.shape[0]):
        w = weights[index[i]]
        b = buffer[index[i]]
        g = grads[i]
        if nesterov:
            for j in range(w.shape[0]):
                d = g[j] + decay * w[j]
                b[j] = beta * b[j] + share * d
                w[j] -= lr * (d + beta * b[j])
        else:
            for j in range(w.shape[0]):
                b[j] = beta * b[j] + share * (g[j] + decay * w[j])
                w[j] -= lr * b[j]


@jit
def adagrad(weights: Any, sums: Any, index: Any, grads: Any, lr: Any, decay: Any, eps: Any) -> None:
    """Divide each gradient by the root of the sum of its squares so far."""
    for i in range(index.shape[0]):
        # Unsigned, so that no check for negative places stands between the loads.
        r = np.uint64(index[i])
        for j in range(weights.shape[1]):
            d = grads[i, j] + decay * weights[r, j]
            total = sums[r, j] + d * d
            sums[r, j] = total
            weights[r, j] -= lr * d / (np.sqrt(total) + eps)


@inline
def _sum_squares(row: Any, lanes: Any) -> Any:
    """Sum squares in a fixed number of lanes: vectorised, yet the same on every machine."""
    lanes[:] = 0
    whole = row.shape[0] - row.shape[0] % _LANES
    for start in range(0, whole, _LANES):
        for k in range(_LANES):
            lanes[k] += row[start + k] * row[start + k]
    for j in range(whole, row.shape[0]):
        lanes[j - whole] += row[j] * row[j]
    total = lanes[0]
    for k in range(1, _LANES):
        total += lanes[k]
    return total


@jit
def rowwise_adagrad(
    weights: Any, sums: Any, index: Any, grads: Any, lr: Any, decay: Any, eps: Any
) -> None:
    """Keep one sum per row: of the mean of its gradients' squares."""
    lanes = np.zeros(_LANES, dtype=weights.dtype)
    step = np.empty(weights.shape[1], dtype=weights.dtype)
    count = weights.dtype.type(weights.shape[1])
    for i in range(index.shape[0]):
        w = weights[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            step[j] = g[j] + decay * w[j]
        total = sums[index[i], 0] + _sum_squares(step, lanes) / count
        sums[index[i], 0] = total
        scale = lr / (np.sqrt(total) + eps)
        for j in range(w.shape[0]):
            w[j] -= scale * step[j]


@jit
def adam(
    weights: Any,
    first: Any,
    second: Any,
    index: Any,
    grads: Any,
    rate: Any,
    decay: Any,
    shrink: Any,
    share1: Any,
    beta2: Any,
    share2: Any,
    eps: Any,
    correction2: Any,
) -> None:
    """Follow running means of gradients and of their squares.

    decay is added to the gradient (Adam), shrink multiplies the weight first (AdamW); rate is
    lr / (1 - beta1^t), share1 is 1 - beta1, correction2 the root of 1 - beta2^t.
    """
    for i in range(index.shape[0]):
        w = weights[index[i]]
        m = first[index[i]]
        v = second[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            x = w[j] * shrink
            d = g[j] + decay * x
            mean = m[j] + (d - m[j]) * share1
            square = beta2 * v[j] + share2 * d * d
            m[j] = mean
            v[j] = square
            w[j] = x - rate * mean / (np.sqrt(square) / correction2 + eps)
