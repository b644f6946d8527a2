"""Properties of tensors: shapes, flags, Python numbers, state of gradients."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.template import op


def _any(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor("any")}


def _single(d: Draw) -> dict[str, Any]:
    if d.chance(0.9):
        return {"x": d.leaf((1,) * d.pick(0, 0, 1, 2), d.pick("float", "int", "bool"))}
    return {"x": d.tensor("any")}


def _integer(d: Draw) -> dict[str, Any]:
    return {"x": d.leaf((), d.pick("int", "int", "bool", "float"))}


def _dim(d: Draw) -> dict[str, Any]:
    x = d.tensor("any", ndim=(1, 4))
    return {"x": x, "dim": d.dim(x)}


_READ = {
    "shape": "tuple(x.shape)",
    "size": "tuple(x.size())",
    "dim": "x.dim()",
    "ndim": "x.ndim",
    "numel": "x.numel()",
    "element_size": "x.element_size()",
    "is_leaf": "x.is_leaf",
    "requires_grad": "x.requires_grad",
    "is_sparse": "x.is_sparse",
    "grad": "x.grad is None",
    "grad_fn": "x.grad_fn is None",
    "device": "str(x.device)",
    "dtype": "str(x.dtype).removeprefix('torch.')",
    "len": "len(x)",
    "tolist": "x.detach().tolist()",
    "numpy": "x.numpy().shape",
    "array": "x.detach().numpy().sum().shape",
    "data": "tuple(x.data.shape)",
    "is_grad_enabled": "t.is_grad_enabled()",
}
for _name, _text in _READ.items():
    op(f"read-{_name}", _text, _any, weight=0.1)
op("read-size-dim", "x.size(dim)", _dim, weight=0.1)
for _text in ("x.item()", "float(x)", "int(x)", "bool(x)"):
    op(f"read-{_text}", _text, _single, weight=0.1)
op("read-index", "[10, 20, 30, 40, 50, 60, 70][x]", _integer, weight=0.1)
op(
    "read-iter",
    "[tuple(row.shape) for row in x]",
    lambda d: {"x": d.tensor(ndim=(0, 2))},
    weight=0.1,
)
