"""The op suite: Reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.engine.cases.case import Case, distinct, normal


def with_zeros(count: int) -> Callable[[Any], list[Any]]:
    """Draw rows with some elements of 0 in the first."""

    def draw(rng: Any) -> list[Any]:
        x = rng.normal(size=(2, 4))
        x[0, 1 : 1 + count] = 0
        return [x]

    return draw


CASES = [
    Case("sum", lambda t, f, a: a.sum(), normal((3, 5))),
    Case("sum-dim", lambda t, f, a: a.sum(dim=1), normal((3, 5, 2))),
    Case("sum-dims", lambda t, f, a: a.sum(dim=(0, -1), keepdim=True), normal((3, 5, 2))),
    Case("sum-empty", lambda t, f, a: a.sum(), normal((0, 5))),
    Case("mean", lambda t, f, a: a.mean(), normal((3, 5))),
    Case("mean-dim", lambda t, f, a: a.mean(dim=0), normal((3, 5))),
    Case("var", lambda t, f, a: a.var(dim=1), normal((3, 5))),
    Case("var-biased", lambda t, f, a: a.var(dim=(0, 1), correction=0), normal((3, 5))),
    Case("max", lambda t, f, a: a.max(), distinct((3, 5))),
    Case("max-dim", lambda t, f, a: a.max(dim=1).values, distinct((3, 5))),
    Case("min", lambda t, f, a: a.min(), distinct((3, 5))),
    Case("norm", lambda t, f, x: x.norm(), normal((3, 5))),
    Case("cumsum", lambda t, f, x: x.cumsum(1), normal((3, 5, 2))),
    Case("logsumexp", lambda t, f, x: (50 * x).logsumexp(-1), normal((3, 5))),
    Case("std", lambda t, f, x: x.std(dim=1), normal((3, 5))),
    Case("prod", lambda t, f, x: x.prod(), normal((3, 5))),
    Case("prod-dim", lambda t, f, x: x.prod(1), normal((3, 5, 2))),
    Case("prod-keepdim", lambda t, f, x: t.prod(x, dim=-1, keepdim=True), normal((3, 5, 2))),
    Case("prod-no-axes", lambda t, f, x: x.prod() + x.prod(0), normal(())),
    Case("prod-empty", lambda t, f, x: x.prod(0), normal((0, 5))),
    Case("prod-of-nothing", lambda t, f, x: x.prod(), normal((0, 5))),
    *[
        Case(f"prod-{zeros}-zeros", lambda t, f, x: x.prod(1), with_zeros(zeros))
        for zeros in (1, 2, 3)
    ],
]
