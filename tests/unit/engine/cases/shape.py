"""The op suite: Views in other shapes."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, normal

CASES = [
    Case("reshape", lambda t, f, a: a.reshape(5, -1), normal((3, 5, 2))),
    Case("view", lambda t, f, a: a.view(15, 2), normal((3, 5, 2))),
    Case("flatten", lambda t, f, a: a.flatten(1), normal((3, 5, 2))),
    Case("transpose", lambda t, f, a: a.transpose(0, 2), normal((3, 5, 2))),
    Case("permute", lambda t, f, a: a.permute(2, 0, 1), normal((3, 5, 2))),
    Case("t", lambda t, f, a: a.T, normal((3, 5))),
    Case("squeeze", lambda t, f, a: a.squeeze(1), normal((3, 1, 2))),
    Case("unsqueeze", lambda t, f, a: a.unsqueeze(-1), normal((3, 2))),
    Case("expand", lambda t, f, a: a.expand(4, 3, 2), normal((3, 1))),
]
