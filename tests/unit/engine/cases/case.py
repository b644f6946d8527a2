"""The op suite: the type of a case, and the inputs that cases draw.

Each case is one call that must work for us and, word for word, for torch. `f` is the functional
namespace, `t` the module with tensor functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

NO_IDS = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """An input that carries no gradient."""

    array: Any


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    call: Callable[..., Any]
    inputs: Callable[[Any], list[Any]]
    peer: Callable[..., Any] | None = None


def normal(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.normal(size=shape) for shape in shapes]


def positive(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.uniform(0.5, 2.0, size=shape) for shape in shapes]


def distinct(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    """Values far enough apart that a step of a difference changes no order and no sign."""

    def draw(rng: Any) -> list[Any]:
        return [
            ((rng.permutation(int(np.prod(s))) + 0.2 + i / 10) / 7 - np.prod(s) / 14).reshape(s)
            for i, s in enumerate(shapes)
        ]

    return draw


def with_classes(shape: tuple[int, ...], ignore: bool = False) -> Callable[[Any], list[Any]]:
    def draw(rng: Any) -> list[Any]:
        target = rng.integers(0, shape[1], size=(shape[0], *shape[2:]))
        if ignore:
            target.reshape(-1)[0] = -100
        return [rng.normal(size=shape), Fixed(target)]

    return draw


def with_index(shape: tuple[int, ...], index: Any) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.normal(size=shape), Fixed(np.array(index))]


def with_bits(*shape: int) -> Callable[[Any], list[Any]]:
    return lambda rng: [
        rng.normal(size=shape),
        Fixed(rng.integers(0, 2, size=shape).astype(np.float64)),
    ]
