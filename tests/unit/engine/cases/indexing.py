"""The op suite: Indexing, picking, joining and splitting."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, distinct, normal, with_index

CASES = [
    Case("cat", lambda t, f, a, b: t.cat([a, b], dim=1), normal((3, 5), (3, 2))),
    Case("stack", lambda t, f, a, b: t.stack([a, b], dim=1), normal((3, 5), (3, 5))),
    Case("split", lambda t, f, a: a.split([1, 4], 1), normal((3, 5))),
    Case("split-unused", lambda t, f, a: a.split(2, 0)[1], normal((5, 3))),
    Case("index-slice", lambda t, f, a: a[1:, None, ::2], normal((3, 5))),
    Case("index-int", lambda t, f, a: a[1, -1], normal((3, 5))),
    Case("index-repeated", lambda t, f, a: a[[0, 2, 0, 0]], normal((3, 5))),
    Case("index-tensor", lambda t, f, a, i: a[i], with_index((4, 3), [[0, 1], [1, 3]])),
    Case("index-mask", lambda t, f, a: a[a > 0], distinct((3, 5))),
    Case("cat-empty", lambda t, f, a, b: t.cat([a, b]), normal((0, 5), (2, 5))),
    Case("gather", lambda t, f, x, i: x.gather(1, i), with_index((3, 4), [[0, 0], [3, 1]])),
    Case("masked-fill", lambda t, f, x: x.masked_fill(x > 0, 2.0), distinct((3, 5))),
    Case("chunk", lambda t, f, x: x.chunk(2, 1), normal((3, 5))),
    Case("unbind", lambda t, f, x: x.unbind(1), normal((3, 2))),
]
