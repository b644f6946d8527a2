"""NAdam and RAdam, one pass over memory each; arguments as in `update`.

decay is added to the gradient, shrink multiplies the weight first; share1 is 1 - beta1, share2 is
1 - beta2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit


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
