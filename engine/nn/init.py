"""Initialisers, named as in torch; all change the tensor in place and return it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator, ShapeError, default_generator, to_device

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended gain for an activation."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope * slope))
    if nonlinearity not in _GAINS:
        raise ValueError(f"no gain known for {nonlinearity!r}")
    return _GAINS[nonlinearity]


def _put(tensor: Tensor, values: Any) -> Tensor:
    array = np.asarray(values).astype(tensor.dtype)
    tensor.data[...] = to_device(array, tensor.device)
    tensor.version[0] += 1
    return tensor


def fans(tensor: Tensor) -> tuple[int, int]:
    """Return fan-in and fan-out of a weight."""
    if tensor.ndim < 2:
        raise ShapeError(f"fan in and out need two axes or more, got shape {tensor.shape}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill from a uniform distribution over [a, b)."""
    return _put(tensor, (generator or default_generator()).uniform(a, b, tensor.shape))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill from a normal distribution."""
    return _put(tensor, (generator or default_generator()).normal(mean, std, tensor.shape))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill from a normal distribution truncated to [a, b]."""
    rng = generator or default_generator()
    values = rng.normal(mean, std, tensor.shape)
    outside = (values < a) | (values > b)
    while outside.any():
        values[outside] = rng.normal(mean, std, (int(outside.sum()),))
        outside = (values < a) | (values > b)
    return _put(tensor, values)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one value."""
    return _put(tensor, np.full(tensor.shape, val))


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity."""
    return _put(tensor, np.eye(tensor.shape[0], tensor.shape[1]))


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill from a uniform distribution with Xavier (Glorot) scaling."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from a normal distribution with Xavier (Glorot) scaling."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is {mode!r}; use 'fan_in' or 'fan_out'")
    fan = fans(tensor)[0 if mode == "fan_in" else 1]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill from a uniform distribution with Kaiming (He) scaling."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill from a normal distribution with Kaiming (He) scaling."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with a semi-orthogonal matrix, times gain."""
    rows = tensor.shape[0]
    cols = tensor.numel() // rows
    drawn = (generator or default_generator()).normal(0.0, 1.0, (rows, cols))
    q, r = np.linalg.qr(drawn if rows >= cols else drawn.T)
    q = q * np.sign(np.diag(r))
    return _put(tensor, gain * (q if rows >= cols else q.T).reshape(tensor.shape))
