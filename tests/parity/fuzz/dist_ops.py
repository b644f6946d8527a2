"""The operations of random graphs; names are those of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

import gradmesh as gm

Operation = Callable[..., Any]


def _where(x: Any, y: Any) -> Any:
    return gm.ops.where(gm.tensor(x.data > 0.5), x, y)


def _reshape(x: Any, last: int) -> Any:
    return x.reshape(-1, last) if last else x.reshape(-1)


class _Fragile(gm.autograd.Function):
    """Copy; fail in backward while failures are enabled in the process."""

    broken = False

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return np.array(x, order="C")

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if _Fragile.broken:
            raise ValueError("broken on purpose")
        return grad


def break_down(broken: bool) -> None:
    """Let backward passes of this process fail at fragile operations, or no longer."""
    _Fragile.broken = broken


def _total(x: Any, y: Any, z: Any) -> Any:
    return x.sum() + y.sum() * 0.5 + z.sum() * 0.25


# Exponentials of small values only, and products that do not grow: sums stay far from infinity.
OPS: Mapping[str, tuple[int, int, Operation]] = MappingProxyType(
    {
        "add": (2, 0, lambda x, y: x + y),
        "mul": (2, 0, lambda x, y: x * y),
        "matmul": (2, 0, lambda x, y: x @ y),
        "linear": (3, 0, gm.nn.functional.linear),
        "cat": (2, 1, lambda x, y, dim: gm.ops.cat([x, y], dim)),
        "where": (2, 0, _where),
        "sum": (1, 0, lambda x: x.sum()),
        "total": (3, 0, _total),
        "sum of": (1, 1, lambda x, dim: x.sum(dim)),
        "relu": (1, 0, lambda x: x.relu()),
        "tanh": (1, 0, lambda x: x.tanh()),
        "exp": (1, 0, lambda x: x.tanh().exp()),
        "getitem": (1, 1, lambda x, place: x[place]),
        "slice": (1, 1, lambda x, step: x[::step]),
        "transpose": (1, 2, lambda x, one, other: x.transpose(one, other)),
        "reshape": (1, 1, _reshape),
        "scale": (1, 1, lambda x, by: x * (by / 4 + 0.3)),
        "same": (1, 0, lambda x: x),
        "fragile": (1, 0, _Fragile.apply),
        "detach": (1, 0, lambda x: x.detach()),
    }
)
"""By name: how many tensors it takes, how many small numbers, and what it does."""


def run(
    name: str, inputs: list[Any], options: tuple[int, ...], wrong: Mapping[str, str] | None = None
) -> Any:
    """Run an operation.

    Args:
        name: Which.
        inputs: Tensors.
        options: Small numbers.
        wrong: Operations that others take the place of, to see that a difference is found.
    """
    return OPS[(wrong or {}).get(name, name)][2](*inputs, *options)
