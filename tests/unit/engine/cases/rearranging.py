"""The op suite: Sorting, flipping, repeating, scattering and selecting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.unit.engine.cases.case import Case, Fixed, distinct, normal


def with_source(
    shape: tuple[int, ...], source: tuple[int, ...], index: Any
) -> Callable[[Any], list[Any]]:
    return lambda rng: [*normal(shape, source)(rng), Fixed(np.array(index, dtype=np.int64))]


def with_mask(shape: tuple[int, ...], mask: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.normal(size=shape), Fixed(np.asarray(rng.normal(size=mask) > 0))]


CASES = [
    Case("sort", lambda t, f, x: x.sort().values, distinct((3, 5))),
    Case("sort-dim", lambda t, f, x: t.sort(x, dim=1).values, distinct((3, 5, 2))),
    Case("sort-descending", lambda t, f, x: x.sort(0, descending=True)[0], distinct((3, 5))),
    Case("sort-empty", lambda t, f, x: x.sort(1).values, normal((3, 0))),
    Case("sort-no-axes", lambda t, f, x: x.sort().values, normal(())),
    Case("argsort", lambda t, f, x: x.gather(1, x.argsort(1)), distinct((3, 5))),
    Case("topk", lambda t, f, x: x.topk(2).values, distinct((3, 5))),
    Case("topk-dim", lambda t, f, x: t.topk(x, 2, dim=0).values, distinct((3, 5))),
    Case("topk-smallest", lambda t, f, x: x.topk(3, 1, largest=False)[0], distinct((3, 5, 2))),
    Case("topk-none", lambda t, f, x: x.topk(0).values, distinct((3, 5))),
    Case("topk-no-axes", lambda t, f, x: x.topk(1).values, normal(())),
    Case("flip", lambda t, f, x: x.flip(0), normal((3, 5))),
    Case("flip-dims", lambda t, f, x: t.flip(x, (0, -1)), normal((3, 5, 2))),
    Case("flip-none", lambda t, f, x: x.flip(()), normal((3, 5))),
    Case("flip-no-axes", lambda t, f, x: x.flip(0), normal(())),
    Case("flip-empty", lambda t, f, x: x.flip(0, 1), normal((0, 5))),
    Case("repeat", lambda t, f, x: x.repeat(2, 3), normal((3, 5))),
    Case("repeat-new-axes", lambda t, f, x: x.repeat((4, 2, 1)), normal((3, 5))),
    Case("repeat-never", lambda t, f, x: x.repeat(0, 2), normal((3, 5))),
    Case("repeat-no-axes", lambda t, f, x: x.repeat(3), normal(())),
    Case("tile", lambda t, f, x: t.tile(x, (2,)), normal((3, 5))),
    Case("tile-new-axes", lambda t, f, x: x.tile(2, 1, 3), normal((3, 5))),
    Case(
        "scatter-add",
        lambda t, f, x, s, i: x.scatter_add(1, i, s),
        with_source((3, 4), (3, 3), [[0, 0, 3], [1, 2, 1], [3, 3, 3]]),
    ),
    Case(
        "scatter-add-rows",
        lambda t, f, x, s, i: t.scatter_add(x, 0, i, s),
        with_source((2, 3, 2), (4, 2, 2), np.arange(16).reshape(4, 2, 2) % 2),
    ),
    Case(
        "scatter-add-part",
        lambda t, f, x, s, i: x.scatter_add(-1, i, s[:2, :2]),
        with_source((3, 4), (3, 3), [[0, 0], [3, 1]]),
    ),
    Case(
        "scatter-add-no-axes",
        lambda t, f, x, s, i: x.scatter_add(0, i, s),
        with_source((), (), 0),
    ),
    Case(
        "scatter-add-empty",
        lambda t, f, x, s, i: x.scatter_add(0, i, s),
        with_source((3, 2), (0, 2), np.zeros((0, 2))),
    ),
    Case(
        "scatter-add-in-place",
        lambda t, f, x, s, i: (x * 1).scatter_add_(0, i, s),
        with_source((4,), (3,), [1, 1, 0]),
    ),
    Case("masked-select", lambda t, f, x, m: x.masked_select(m), with_mask((3, 5), (3, 5))),
    Case("masked-select-rows", lambda t, f, x, m: x.masked_select(m), with_mask((3, 5), (3, 1))),
    Case("masked-select-more", lambda t, f, x, m: t.masked_select(x, m), with_mask((5,), (3, 5))),
    Case("masked-select-no-axes", lambda t, f, x, m: x.masked_select(m), with_mask((), ())),
    Case("masked-select-empty", lambda t, f, x, m: x.masked_select(m), with_mask((0, 5), (5,))),
]
