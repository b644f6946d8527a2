"""Embedding tables, bags and the products of features that have no name in torch."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.template import op


def _lookup(d: Draw) -> dict[str, Any]:
    rows = d.rng.randint(1, 5)
    high = rows + (1 if d.chance(0.02) else 0)
    return {
        "ids": d.leaf(None, "int", 0, high, dtype="int64" if d.chance(0.8) else "int32"),
        "w": d.leaf((rows, d.length()), dtype=d.dtype),
        "pad": d.pick(None, None, 0, -1),
        "sparse": d.chance(0.3),
        "rows": rows,
        "dim": d.length() or 1,
        "state": d.rng.randrange(1000),
        "dtype": d.dtype,
        "training": True,
    }


def _bag(d: Draw) -> dict[str, Any]:
    drawn = _lookup(d)
    ragged = d.chance(0.6)
    mode = d.pick("sum", "mean", "max")
    count = d.rng.randint(0, 6)
    shape = (count,) if ragged else d.shape(2)
    ids = d.leaf(shape, "int", 0, drawn["rows"], dtype="int64")
    offsets = None
    last = d.chance(0.4)
    if ragged:
        cuts = sorted(d.rng.randint(0, count) for _ in range(d.rng.randint(0, 3)))
        import numpy as np

        from tests.parity.fuzz.graph import Leaf, Ref

        places = [0, *cuts, *([count] if last else [])]
        d.append(Leaf(np.asarray(places, dtype=np.int64)))
        offsets = Ref(len(d.graph.items) - 1)
    weighted = mode == "sum" and d.chance(0.4)
    return {
        **drawn,
        "ids": ids,
        "offsets": offsets,
        "mode": mode,
        "last": last and ragged,
        "scales": d.leaf(shape, dtype=d.dtype) if weighted else None,
        "sparse": drawn["sparse"] and mode != "max",
    }


def _rows(d: Draw) -> dict[str, Any]:
    rows = d.rng.randint(1, 5)
    return {"x": d.leaf((rows, d.length())), "index": d.leaf(None, "int", 0, rows, dtype="int64")}


def _features(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=3)
    return {"x": x, "own": d.chance(0.4)}


def _cross(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=2)
    dtype, shape = d.dtype_of(x), d.shape_of(x)
    wide = shape[-1]
    return {
        "x0": d.leaf(shape, dtype=dtype),
        "x": x,
        "w": d.leaf((wide, wide), dtype=dtype),
        "b": d.leaf((wide,), dtype=dtype),
    }


op("embedding", "f.embedding(ids, w, padding_idx=pad, sparse=sparse)", _lookup)
op(
    "n.Embedding",
    "apply(n.Embedding(rows, dim, padding_idx=pad, sparse=sparse), state, dtype, training, ids)",
    _lookup,
    weight=0.7,
)
_OPTIONS = (
    "mode=mode, sparse=sparse, per_sample_weights=scales, include_last_offset=last, padding_idx=pad"
)
op("embedding-bag", f"f.embedding_bag(ids, w, offsets, {_OPTIONS})", _bag, weight=1.5)
op(
    "n.EmbeddingBag",
    "apply(n.EmbeddingBag(rows, dim, mode=mode, sparse=sparse, include_last_offset=last,"
    " padding_idx=pad), state, dtype, training, ids, offsets, scales)",
    _bag,
    weight=0.7,
)
op("take-rows", "f.take_rows(x, index)", _rows, peer="x[index].clone()", weight=0.7)
_PAIRS = "(x @ x.transpose(1, 2))[:, *t.tril_indices(x.shape[1], x.shape[1], -1)]"
# The sum over pairs loses the digits that this formula loses, in other elements.
_OF_SUMS = "((x.sum(1) ** 2 - (x ** 2).sum(1)) / 2).sum(-1, keepdim=True)"
_ALL_PAIRS = "(x @ x.transpose(1, 2))[:, *t.tril_indices(x.shape[1], x.shape[1], 0)]"
op("dot-interaction", "f.dot_interaction(x)", _features, peer=_PAIRS, weight=0.7)
op(
    "n.DotInteraction",
    "n.DotInteraction(self_interaction=own)(x)",
    _features,
    peer=f"({_ALL_PAIRS} if own else {_PAIRS})",
    weight=0.4,
)
for _name in ("f.factorization_machine(x)", "n.FactorizationMachine()(x)"):
    op(_name, _name, _features, peer=_OF_SUMS, weight=0.4)
op(
    "cross-layer",
    "f.cross_layer(x0, x, w, b)",
    _cross,
    peer="x0 * f.linear(x, w, b) + x",
    weight=0.7,
)
