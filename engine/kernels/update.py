"""Optimizer updates of rows, one pass over memory each.

A dense parameter is one long row, so dense and sparse updates are the same code and round the
same way. Every kernel takes weights [m, dim], the rows to change (distinct) and their gradients
[n, dim]. Arguments of Adam's family: decay is added to the gradient, shrink multiplies the weight
first; share1 is 1 - beta1, share2 is 1 - beta2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit, prefetch_row

_LANES = 16
# How many rows ahead to prefetch.
_AHEAD = 8


@jit
def sgd(weights: Any, index: Any, grads: Any, lr: Any, decay: Any) -> None:
    """Subtract lr * (grad + decay * weight)."""
    for i in range(index.shape[0]):
        if i + _AHEAD < index.shape[0]:
            prefetch_row(weights, index[i + _AHEAD])
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
        # Unsigned, so that no check for negative indices separates the loads.
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


@jit
def amsgrad(
    weights: Any,
    first: Any,
    second: Any,
    largest: Any,
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
    """Update as `adam`, dividing by the root of the largest second mean so far."""
    for i in range(index.shape[0]):
        w = weights[index[i]]
        m = first[index[i]]
        v = second[index[i]]
        top = largest[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            x = w[j] * shrink
            d = g[j] + decay * x
            mean = m[j] + (d - m[j]) * share1
            square = beta2 * v[j] + share2 * d * d
            m[j] = mean
            v[j] = square
            # Written so that NaN stays NaN, as numpy's and torch's maximum do.
            high = top[j] if top[j] > square else square
            top[j] = high
            w[j] = x - rate * mean / (np.sqrt(high) / correction2 + eps)


@jit
def adamax(
    weights: Any,
    first: Any,
    largest: Any,
    index: Any,
    grads: Any,
    rate: Any,
    decay: Any,
    share1: Any,
    beta2: Any,
    eps: Any,
) -> None:
    """Divide the running mean of gradients by their largest size; rate is lr / (1 - beta1^t)."""
    for i in range(index.shape[0]):
        w = weights[index[i]]
        m = first[index[i]]
        top = largest[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            d = g[j] + decay * w[j]
            mean = m[j] + (d - m[j]) * share1
            old, new = beta2 * top[j], abs(d) + eps
            high = old if old > new else new
            m[j] = mean
            top[j] = high
            w[j] -= rate * mean / high


@jit
def rmsprop(
    weights: Any,
    squares: Any,
    buffer: Any,
    means: Any,
    index: Any,
    grads: Any,
    lr: Any,
    decay: Any,
    alpha: Any,
    share: Any,
    eps: Any,
    momentum: Any,
    centered: Any,
) -> None:
    """Divide by the root of the running mean square, less the squared mean if centered.

    buffer is touched only with momentum and means only if centered; else any array will do.
    """
    for i in range(index.shape[0]):
        w = weights[index[i]]
        s = squares[index[i]]
        b = buffer[index[i]]
        a = means[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            d = g[j] + decay * w[j]
            spread = alpha * s[j] + share * d * d
            s[j] = spread
            if centered:
                mean = a[j] + (d - a[j]) * share
                a[j] = mean
                spread -= mean * mean
            d /= np.sqrt(spread) + eps
            if momentum != 0:
                d += momentum * b[j]
                b[j] = d
            w[j] -= lr * d


@jit
def adadelta(
    weights: Any,
    squares: Any,
    moves: Any,
    index: Any,
    grads: Any,
    lr: Any,
    decay: Any,
    rho: Any,
    share: Any,
    eps: Any,
) -> None:
    """Scale gradients by the ratio of recent steps to recent gradients."""
    for i in range(index.shape[0]):
        w = weights[index[i]]
        s = squares[index[i]]
        a = moves[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            d = g[j] + decay * w[j]
            square = rho * s[j] + share * d * d
            move = np.sqrt(a[j] + eps) / np.sqrt(square + eps) * d
            s[j] = square
            a[j] = rho * a[j] + share * move * move
            w[j] -= lr * move


@jit
def rprop(
    weights: Any,
    before: Any,
    sizes: Any,
    index: Any,
    grads: Any,
    lr: Any,
    shrink: Any,
    grow: Any,
    least: Any,
    most: Any,
) -> None:
    """Step by the sign of the gradient; a size of 0 was never set and becomes lr."""
    one = weights.dtype.type(1)
    for i in range(index.shape[0]):
        w = weights[index[i]]
        p = before[index[i]]
        s = sizes[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            turn = g[j] * p[j]
            size = lr if s[j] == 0 else s[j]
            size *= grow if turn > 0 else (shrink if turn < 0 else one)
            size = least if size < least else (most if size > most else size)
            kept = g[j] * 0 if turn < 0 else g[j]
            s[j] = size
            p[j] = kept
            # Neither above nor below 0 is 0 or NaN, which both stay.
            w[j] -= size * (one if kept > 0 else (-one if kept < 0 else kept))


@jit
def ftrl(
    weights: Any, z: Any, n: Any, index: Any, grads: Any, lr: Any, beta: Any, l1: Any, l2: Any
) -> None:
    """Solve for the weights that fit all gradients so far."""
    for i in range(index.shape[0]):
        w = weights[index[i]]
        a = z[index[i]]
        b = n[index[i]]
        g = grads[i]
        for j in range(w.shape[0]):
            grown = b[j] + g[j] * g[j]
            root = np.sqrt(grown)
            total = a[j] + (g[j] - (root - np.sqrt(b[j])) / lr * w[j])
            a[j] = total
            b[j] = grown
            if abs(total) <= l1:
                w[j] = 0
            else:
                w[j] = ((l1 if total > 0 else -l1) - total) / ((beta + root) / lr + l2)


@jit
def nadam(
    weights: Any,
    first: Any,
    second: Any,
    index: Any,
    grads: Any,
    of_grad: Any,
    of_mean: Any,
    decay: Any,
    shrink: Any,
    share1: Any,
    beta2: Any,
    share2: Any,
    eps: Any,
    correction2: Any,
) -> None:
    """Step by of_grad times the gradient and of_mean times its running mean, over the root.

    correction2 is the root of 1 - beta2^t.
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
            w[j] = x - (of_grad * d + of_mean * mean) / (np.sqrt(square) / correction2 + eps)


@jit
def radam(
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
    rectified: Any,
) -> None:
    """Step by rate times the running mean, over the root of the mean square if rectified."""
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
            w[j] = x - rate * (mean / (np.sqrt(square) + eps) if rectified else mean)
