"""Cases of tensors without axes, and of forms of ops that the other families leave out."""

from __future__ import annotations

import math

from tests.unit.engine.cases.case import Case, distinct, normal, positive, with_index

CASES = [
    *[
        Case(f"{name}-bare", call, positive(()))
        for name, call in {
            "add": lambda t, f, x: x + x,
            "gelu": lambda t, f, x: f.gelu(x),
            "softmax": lambda t, f, x: x.softmax(0) * x,
            "logsumexp": lambda t, f, x: x.logsumexp(0),
            "sum": lambda t, f, x: x.sum(-1),
            "max": lambda t, f, x: x.max(0).values,
            "cumsum": lambda t, f, x: x.cumsum(0),
            "norm": lambda t, f, x: x.norm(3),
            "flatten": lambda t, f, x: x.flatten(),
            "clamp": lambda t, f, x: x.clamp(0, 9),
        }.items()
    ],
    Case("linear-4d", lambda t, f, x, w, b: f.linear(x, w, b), normal((2, 3, 2, 5), (7, 5), (7,))),
    Case(
        "linear-turned",
        lambda t, f, x, w, b: f.linear(x.transpose(0, 2), w, b),
        normal((2, 3, 4, 5), (7, 5), (7,)),
    ),
    Case("max-keep", lambda t, f, a: a.max(1, keepdim=True)[0], distinct((3, 5))),
    Case("min-dim", lambda t, f, a: a.min(dim=-2).values, distinct((3, 5))),
    *[
        Case(f"norm-{p}", lambda t, f, x, p=p: x.norm(p, dim=1), distinct((3, 5)))
        for p in (1, 3, math.inf, -math.inf, 0.5)
    ],
    Case("norm-dims", lambda t, f, x: x.norm(2, (0, 2), True), normal((3, 5, 2))),
    Case("logsumexp-dims", lambda t, f, x: x.logsumexp((0, -1)), normal((3, 5, 2))),
    Case("clamp-tensors", lambda t, f, x, a, b: x.clamp(a, b + 1), distinct((3, 5), (5,), (3, 1))),
    Case("pow-both", lambda t, f, x, y: x**y, positive((3, 1), (4,))),
    Case("index-mixed", lambda t, f, a, i: a[0, :, i], with_index((2, 3, 4), [0, 3, 0])),
    Case("index-ellipsis", lambda t, f, a, i: a[i, ..., 1], with_index((2, 3, 4), [1, 0, 1])),
    Case("expand-kept", lambda t, f, a: a.expand(4, -1, 2), normal((3, 1))),
]
