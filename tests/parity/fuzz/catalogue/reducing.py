"""Reductions, running sums, and orders along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.library import TORCH
from tests.parity.fuzz.template import op

_FLOAT_OR_ANY = ("float", "float", "float", "any")


def _all(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor(d.pick(*_FLOAT_OR_ANY))}


def _dims(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick(*_FLOAT_OR_ANY))
    return {"x": x, "dim": d.dims(x), "keep": d.chance(0.4)}


def _dim(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick(*_FLOAT_OR_ANY))
    return {"x": x, "dim": d.dim(x)}


def _dim_keep(d: Draw) -> dict[str, Any]:
    return {**_dim(d), "keep": d.chance(0.4)}


def _corrected(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    return {"x": x, "dim": d.dims(x), "correction": d.pick(0, 1, 1, 2, 0.5), "keep": d.chance(0.4)}


def _order(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    return {"x": x, "p": d.pick(1, 2, 3, float("inf"), 0.5, 0), "dim": d.dims(x)}


def _top(d: Draw) -> dict[str, Any] | None:
    x = d.tensor("float", ndim=(1, 4))
    values = TORCH.array(d.of(x))
    if np.unique(values).size < values.size:
        # Which of equal elements is taken is not defined.
        return None
    dim = d.dim(x, wrong=0)
    return {"x": x, "k": d.rng.randint(0, d.shape_of(x)[dim]), "dim": dim, "largest": d.chance(0.6)}


def _sorted(d: Draw) -> dict[str, Any]:
    return {**_dim(d), "down": d.chance(0.5)}


for _name in (
    "sum",
    "mean",
    "max",
    "min",
    "prod",
    "std",
    "var",
    "norm",
    "any",
    "all",
):
    op(f"x.{_name}", f"x.{_name}()", _all, weight=0.6)
    op(f"t.{_name}", f"t.{_name}(x)", _all, weight=0.4)
for _name in ("sum", "mean"):
    op(f"x.{_name}-dims", f"x.{_name}(dim=dim, keepdim=keep)", _dims)
    op(f"t.{_name}-dims", f"t.{_name}(x, dim, keepdim=keep)", _dims, weight=0.5)
for _name in ("var", "std"):
    call = "(dim=dim, correction=correction, keepdim=keep)"
    op(f"x.{_name}-dims", f"x.{_name}{call}", _corrected)
    op(f"t.{_name}-dims", f"t.{_name}(x, {call[1:]}", _corrected, weight=0.5)
for _name in ("max", "min"):
    op(f"x.{_name}-dim", f"x.{_name}(dim, keepdim=keep)", _dim_keep)
    op(f"t.{_name}-dim", f"t.{_name}(x, dim=dim)", _dim, weight=0.5)
op("x.prod-dim", "x.prod(dim)", _dim)
op("t.prod-dim", "t.prod(x, dim=dim, keepdim=keep)", _dim_keep, weight=0.5)
op("x.norm-dims", "x.norm(dim=dim, keepdim=keep)", _dims)
op("x.norm-order", "x.norm(p, dim=dim)", _order)
op("t.norm-order", "t.norm(x, p, dim=dim)", _order, weight=0.5)
for _name in ("argmax", "argmin"):
    op(f"x.{_name}", f"x.{_name}()", _all, weight=0.3)
    op(f"x.{_name}-dim", f"x.{_name}(dim)", _dim, weight=0.4)
    op(f"t.{_name}", f"t.{_name}(x, dim)", _dim, weight=0.2)
for _name in ("any", "all"):
    op(f"x.{_name}-dim", f"x.{_name}(dim)", _dim, weight=0.4)
    op(f"t.{_name}-dim", f"t.{_name}(x, dim)", _dim, weight=0.2)
op("x.cumsum", "x.cumsum(dim)", _dim)
op("t.cumsum", "t.cumsum(x, dim)", _dim, weight=0.5)
op("x.logsumexp", "x.logsumexp(dim, keepdim=keep)", _dim_keep)
op("t.logsumexp", "t.logsumexp(x, dim)", _dim, weight=0.5)
for _name in ("softmax", "log_softmax"):
    op(f"x.{_name}", f"x.{_name}(dim)", _dim)
    op(f"t.{_name}", f"t.{_name}(x, dim)", _dim, weight=0.5)
    op(f"f.{_name}", f"f.{_name}(x, dim=dim)", _dim, weight=0.5)
# Which of equal elements topk names is not defined, so places are not compared.
for _name in (
    "x.topk(k, dim=dim, largest=largest)[0]",
    "t.topk(x, k, dim=dim, largest=largest)[0]",
):
    op(_name[:6], _name, _top)
for _name in ("sort", "argsort"):
    op(f"x.{_name}", f"x.{_name}(dim=dim, descending=down, stable=True)", _sorted)
    op(f"t.{_name}", f"t.{_name}(x, dim=dim, descending=down, stable=True)", _sorted, weight=0.5)
