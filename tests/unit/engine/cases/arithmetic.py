"""The op suite: Arithmetic of two operands."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, distinct, normal, positive

CASES = [
    Case("add", lambda t, f, a, b: a + b, normal((3, 5), (3, 5))),
    Case("add-broadcast", lambda t, f, a, b: a + b, normal((3, 1, 5), (7, 1))),
    Case("add-scalar", lambda t, f, a: 2 + a + 1.5, normal((7,))),
    Case("add-empty", lambda t, f, a, b: a + b, normal((0, 5), (5,))),
    Case("sub", lambda t, f, a, b: a - b, normal((3, 5), (5,))),
    Case("sub-reversed", lambda t, f, a: 1 - a, normal((3, 5))),
    Case("mul", lambda t, f, a, b: a * b, normal((3, 5), (3, 1))),
    Case("mul-same", lambda t, f, a: a * a * a, normal((3, 5))),
    Case("div", lambda t, f, a, b: a / b, positive((3, 5), (5,))),
    Case("div-reversed", lambda t, f, a: 2 / a, positive((3, 5))),
    Case("pow", lambda t, f, a, b: a**b, positive((3, 5), (5,))),
    Case("pow-scalar", lambda t, f, a: a**3, normal((3, 5))),
    Case("neg", lambda t, f, a: -a, normal((3, 5))),
    Case("maximum", lambda t, f, a, b: t.maximum(a, b), distinct((5, 7), (5, 7))),
    Case("minimum", lambda t, f, a, b: t.minimum(a, b * 1.3), distinct((5, 7), (5, 7))),
    Case(
        "maximum-number",
        lambda t, f, a: t.maximum(a, 0.11),
        distinct((5, 7)),
        lambda t, f, a: a.clamp(min=0.11),
    ),
    Case("where", lambda t, f, a, b: t.where(a > 0, a, b), distinct((5, 7), (7,))),
    Case("clone", lambda t, f, a: a.clone() * 2, normal((3, 5))),
    Case("remainder", lambda t, f, a, b: a % b, normal((3, 5), (5,))),
    Case("remainder-scalar", lambda t, f, a: a % 0.7, normal((3, 5))),
    Case(
        "remainder-reversed",
        lambda t, f, a: 5 % a,
        positive((3, 5)),
        lambda t, f, a: t.full_like(a, 5) % a,
    ),
    Case("remainder-negative", lambda t, f, a, b: t.remainder(a, -b), normal((3, 1), (3, 5))),
    Case("remainder-empty", lambda t, f, a, b: a % b, normal((0, 5), (5,))),
    Case("remainder-no-axes", lambda t, f, a, b: a % b, normal((), ())),
]
