"""Random rows that depend on (seed, id, column) alone, so any shard count makes the same table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit
from gradmesh.engine.kernels.hashing import spread

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TWO_PI = 2.0 * math.pi


@inline
def _stream(seed: Any, row: Any) -> Any:
    return spread(spread(np.uint64(seed) + _GOLDEN) ^ (np.uint64(row) * _GOLDEN))


@inline
def _unit(bits: Any) -> Any:
    """Turn 53 bits into a float64 in (0, 1)."""
    return (np.float64(bits >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@jit
def _uniform(out: Any, ids: Any, seed: Any, low: Any, width: Any) -> None:
    for i in range(ids.shape[0]):
        base = _stream(seed, ids[i])
        for j in range(out.shape[1]):
            out[i, j] = low + width * _unit(spread(base + np.uint64(j) * _GOLDEN))


@jit
def _normal(out: Any, ids: Any, seed: Any, mean: Any, std: Any) -> None:
    for i in range(ids.shape[0]):
        base = _stream(seed, ids[i])
        for j in range(out.shape[1]):
            first = _unit(spread(base + np.uint64(2 * j) * _GOLDEN))
            second = _unit(spread(base + np.uint64(2 * j + 1) * _GOLDEN))
            out[i, j] = mean + std * math.sqrt(-2.0 * math.log(first)) * math.cos(_TWO_PI * second)


def init_uniform(out: Any, ids: Any, seed: int, low: float, high: float) -> None:
    """Fill rows with numbers from [low, high).

    Args:
        out: float32 or float64 [n, dim], one row per id.
        ids: int64 [n].
        seed: Of the table.
        low: Lower bound.
        high: Upper bound.
    """
    _uniform(out, ids, np.uint64(seed % 2**64), float(low), float(high) - float(low))


def init_normal(out: Any, ids: Any, seed: int, mean: float, std: float) -> None:
    """Fill rows with numbers from a normal distribution; arguments as in `init_uniform`."""
    _normal(out, ids, np.uint64(seed % 2**64), float(mean), float(std))
