"""The op suite: Interactions of features."""

from __future__ import annotations

from typing import Any

from tests.unit.engine.cases.case import Case, normal


def peer_dot(t: Any, f: Any, x: Any) -> Any:
    i, j = t.tril_indices(x.shape[1], x.shape[1], -1)
    return t.bmm(x, x.transpose(1, 2))[:, i, j]


def peer_fm(t: Any, f: Any, x: Any) -> Any:
    return peer_dot(t, f, x).sum(dim=1, keepdim=True)


def cross(t: Any, f: Any, x0: Any, x: Any, w: Any, b: Any) -> Any:
    return f.cross_layer(x0, x, w, b)


def peer_cross(t: Any, f: Any, x0: Any, x: Any, w: Any, b: Any) -> Any:
    return x0 * f.linear(x, w, b) + x


CASES = [
    Case(
        "dot-interaction-empty", lambda t, f, x: f.dot_interaction(x), normal((0, 5, 2)), peer_dot
    ),
    Case("dot-interaction", lambda t, f, x: f.dot_interaction(x), normal((3, 5, 2)), peer_dot),
    Case("cross-layer", cross, normal((3, 5), (3, 5), (5, 5), (5,)), peer_cross),
    Case(
        "factorization-machine",
        lambda t, f, x: f.factorization_machine(x),
        normal((3, 5, 2)),
        peer_fm,
    ),
]
