"""Ops that change the shape: views, joins and pieces."""

from __future__ import annotations

import math
from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.template import op


def _any(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor(d.pick("float", "float", "any"))}


def _matrix(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor("float", ndim=(0, 2) if d.chance(0.95) else 3)}


def _other_shape(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    total = math.prod(d.shape_of(x))
    sizes: list[int] = []
    rest = total
    for n in (2, 3, 4, 5):
        if rest and rest % n == 0 and d.chance(0.5):
            sizes.append(n)
            rest //= n
    sizes.insert(d.rng.randint(0, len(sizes)), rest)
    if d.chance(0.3):
        sizes.insert(d.rng.randint(0, len(sizes)), 1)
    if d.chance(0.4):
        sizes[d.rng.randrange(len(sizes))] = -1
    if d.chance(0.03):
        sizes.append(7)
    if total == 1 and d.chance(0.3):
        sizes = []
    return {"x": x, "shape": tuple(sizes)}


def _two_dims(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    return {"x": x, "a": d.dim(x), "b": d.dim(x)}


def _range_of_dims(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    ndim = max(len(d.shape_of(x)), 1)
    a, b = sorted((d.rng.randrange(ndim), d.rng.randrange(ndim)))
    return {"x": x, "a": a, "b": b - ndim if d.chance(0.5) else b}


def _axes(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    ndim = len(d.shape_of(x))
    axes = d.rng.sample(range(ndim), ndim)
    if axes and d.chance(0.03):
        axes[0] = axes[-1]
    return {"x": x, "axes": tuple([a - ndim if d.chance(0.2) else a for a in axes])}


def _dim(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    return {"x": x, "dim": d.dim(x)}


def _new_dim(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    ndim = len(d.shape_of(x))
    return {"x": x, "dim": d.rng.randint(-ndim - 1, ndim) if d.chance(0.97) else ndim + 1}


def _wider(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    shape = [d.length() if n == 1 else (-1 if d.chance(0.3) else n) for n in d.shape_of(x)]
    shape = [*d.shape(d.pick(0, 0, 1)), *shape]
    if d.chance(0.03):
        shape.append(3)
    return {"x": x, "shape": tuple(shape)}


def _several(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    shape = d.shape_of(x)
    dim = d.dim(x)
    others = []
    for _ in range(d.pick(0, 1, 1, 2)):
        own = list(shape)
        if own and -len(own) <= dim < len(own):
            own[dim] = d.length()
        if own and d.chance(0.02):
            own[0] += 1
        others.append(d.tensor("float", shape=tuple(own)))
    return {"xs": [x, *others] if d.chance(0.5) else [*others, x], "dim": dim}


def _alike(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    others = [d.tensor("float", shape=d.shape_of(x)) for _ in range(d.pick(0, 1, 2))]
    return {"xs": [x, *others], "dim": d.rng.randint(-len(d.shape_of(x)) - 1, len(d.shape_of(x)))}


def _pieces(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    dim = d.dim(x)
    total = d.shape_of(x)[dim] if -len(d.shape_of(x)) <= dim < len(d.shape_of(x)) else 2
    if d.chance(0.5):
        return {"x": x, "lengths": d.pick(1, 2, 3), "dim": dim}
    cut = d.rng.randint(0, total)
    lengths = d.pick([cut, total - cut], [total], [0, cut, total - cut], (cut, total - cut))
    return {"x": x, "lengths": lengths if d.chance(0.97) else [total, 1], "dim": dim}


def _chunks(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    return {"x": x, "count": d.pick(1, 2, 3, 5), "dim": d.dim(x)}


def _repeats(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    extra = d.pick(0, 0, 1) if d.chance(0.9) else -1
    count = max(len(d.shape_of(x)) + extra, 0)
    return {"x": x, "times": tuple([d.pick(1, 1, 2, 3, 0) for _ in range(count)])}


def _some_shape(d: Draw) -> dict[str, Any] | None:
    """Leave out the shape without axes, which torch does not take as no arguments."""
    drawn = _other_shape(d)
    return drawn if drawn["shape"] else None


for _spelled in ("x.reshape(shape)", "x.reshape(*shape)", "t.reshape(x, shape)", "x.view(shape)"):
    drawn = _some_shape if "*" in _spelled else _other_shape
    op(_spelled, _spelled, drawn, peer=_spelled.replace("view", "reshape"), weight=0.7)
op("x.view-contiguous", "x.contiguous().view(*shape)", _some_shape, weight=0.5)
op("x.flatten", "x.flatten()", _any, weight=0.5)
op("t.flatten", "t.flatten(x)", _any, weight=0.5)
op("x.flatten-dims", "x.flatten(a, b)", _range_of_dims, weight=0.7)
op("x.transpose", "x.transpose(a, b)", _two_dims)
op("t.transpose", "t.transpose(x, a, b)", _two_dims, weight=0.5)
op("x.permute", "x.permute(axes)", _axes)
op("x.permute-apart", "x.permute(*axes)", lambda d: a if (a := _axes(d))["axes"] else None)
op("t.permute", "t.permute(x, axes)", _axes, weight=0.5)
op("x.T", "x.T", _matrix, weight=0.5)
op("x.t", "x.t()", _matrix, weight=0.5)
op("x.squeeze", "x.squeeze()", _any, weight=0.5)
op("x.squeeze-dim", "x.squeeze(dim)", _dim, weight=0.7)
op("t.squeeze", "t.squeeze(x, dim)", _dim, weight=0.4)
op("x.unsqueeze", "x.unsqueeze(dim)", _new_dim, weight=0.7)
op("t.unsqueeze", "t.unsqueeze(x, dim)", _new_dim, weight=0.4)
op("x.expand", "x.expand(shape)", _wider)
op("x.expand-apart", "x.expand(*shape)", lambda d: a if (a := _wider(d))["shape"] else None)
op("t.cat", "t.cat(xs, dim)", _several, weight=1.5)
op("t.cat-first", "t.cat(xs)", _several, weight=0.5)
op("t.stack", "t.stack(xs, dim)", _alike)
op("x.split", "x.split(lengths, dim)", _pieces)
op("t.split", "t.split(x, lengths, dim)", _pieces, weight=0.5)
op("x.chunk", "x.chunk(count, dim)", _chunks)
op("t.chunk", "t.chunk(x, count, dim)", _chunks, weight=0.5)
op("x.unbind", "x.unbind(dim)", _dim, weight=0.7)
op("t.unbind", "t.unbind(x, dim)", _dim, weight=0.4)
op("x.repeat", "x.repeat(*times)", lambda d: a if (a := _repeats(d))["times"] else None)
op("x.tile", "x.tile(times)", _repeats)
op("t.tile", "t.tile(x, times)", _repeats, weight=0.5)
for _name in ("x.flip(dims)", "t.flip(x, dims)"):
    op(_name[:6], _name, lambda d: {"x": (x := d.tensor()), "dims": (d.dim(x),)})
