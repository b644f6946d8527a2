"""The op suite: Products of matrices and linear layers."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, normal

CASES = [
    Case("matmul", lambda t, f, a, b: a @ b, normal((3, 5), (5, 7))),
    Case("matmul-vector", lambda t, f, a, b: a @ b, normal((3, 5), (5,))),
    Case("matmul-vectors", lambda t, f, a, b: a @ b, normal((5,), (5,))),
    Case("matmul-left-vector", lambda t, f, a, b: a @ b, normal((5,), (2, 5, 3))),
    Case("matmul-batched", lambda t, f, a, b: a @ b, normal((2, 1, 3, 5), (4, 5, 2))),
    Case("matmul-empty", lambda t, f, a, b: a @ b, normal((0, 5), (5, 3))),
    Case("linear", lambda t, f, x, w, b: f.linear(x, w, b), normal((3, 5), (7, 5), (7,))),
    Case("linear-3d", lambda t, f, x, w, b: f.linear(x, w, b), normal((2, 3, 5), (7, 5), (7,))),
    Case("linear-no-bias", lambda t, f, x, w: f.linear(x, w), normal((3, 5), (1, 5))),
    Case("linear-empty", lambda t, f, x, w, b: f.linear(x, w, b), normal((0, 5), (7, 5), (7,))),
    Case(
        "linear-relu",
        lambda t, f, x, w, b: f.linear_relu(x, w, b),
        normal((9, 5), (7, 5), (7,)),
        lambda t, f, x, w, b: f.relu(f.linear(x, w, b)),
    ),
    Case(
        "linear-relu-empty",
        lambda t, f, x, w, b: f.relu(f.linear(x, w, b)),
        normal((0, 5), (7, 5), (7,)),
    ),
]
