"""Picking elements: by index, by mask, along an axis."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.graph import Ref
from tests.parity.fuzz.template import op


def cut(d: Draw, length: int) -> slice:
    """Draw a slice of an axis; torch takes positive steps only."""
    ends = [None, *range(-length, length + 1)]
    return slice(d.pick(*ends), d.pick(*ends), d.pick(None, None, 1, 2))


def place(d: Draw, length: int) -> int:
    """Draw a place of an axis, seldom one outside."""
    if not length or d.chance(0.02):
        return length
    return d.rng.randrange(-length, length)


def basic(d: Draw, shape: tuple[int, ...]) -> Any:
    """Draw an index of integers, slices, None and Ellipsis."""
    parts: list[Any] = []
    for n in shape[: d.rng.randint(0, len(shape))]:
        parts.append(place(d, n) if d.chance(0.4) else cut(d, n))
    for extra in (None, Ellipsis):
        if d.chance(0.2):
            parts.insert(d.rng.randint(0, len(parts)), extra)
    if len(parts) == 1 and d.chance(0.5):
        return parts[0]
    return tuple(parts) if parts else ...


def advanced(d: Draw, shape: tuple[int, ...]) -> Any:
    """Draw an index with lists, tensors of integers and masks among integers and slices."""
    if not shape or not all(shape):
        return None
    if d.chance(0.15):
        return d.leaf(shape[: d.rng.randint(1, len(shape))], "bool")
    common = d.shape(d.pick(1, 1, 2))
    parts: list[Any] = []
    for n in shape[: d.rng.randint(1, len(shape))]:
        choice = d.rng.random()
        if choice < 0.45:
            wanted = tuple([1 if d.chance(0.15) else m for m in common])
            parts.append(d.leaf(wanted, "int", -n, n, dtype="int64"))
        elif choice < 0.6:
            parts.append([d.rng.randrange(n) for _ in range(common[-1])])
        elif choice < 0.75:
            parts.append(place(d, n))
        else:
            parts.append(cut(d, n))
    if d.chance(0.1):
        parts.insert(d.rng.randint(0, len(parts)), None)
    if len(parts) == 1 and d.chance(0.6):
        return parts[0]
    return tuple(parts)


def _view(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    return {"x": x, "index": basic(d, d.shape_of(x))}


def _pick(d: Draw) -> dict[str, Any] | None:
    x = d.tensor("float", ndim=(1, 4))
    index = advanced(d, d.shape_of(x))
    return None if index is None else {"x": x, "index": index}


def along(d: Draw, x: Ref) -> dict[str, Any]:
    """Draw an axis and an index tensor for gather and its relatives."""
    shape = list(d.shape_of(x))
    dim = d.dim(x)
    if not shape:
        return {"x": x, "dim": 0, "index": d.leaf((), "int", 0, 1, dtype="int64")}
    axis = dim % len(shape)
    total = shape[axis]
    sizes = [d.rng.randint(0, n) if d.chance(0.2) else n for n in shape]
    if d.chance(0.03):
        sizes[d.rng.randrange(len(sizes))] += 1
    sizes[axis] = d.length() if total else 0
    index = d.leaf(tuple(sizes), "int", 0, max(total, 1), dtype="int64")
    return {"x": x, "dim": dim, "index": index}


def _select(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    dim = d.dim(x, wrong=0)
    total = d.shape_of(x)[dim]
    count = d.length() if total else 0
    low = -1 if d.chance(0.03) else 0
    shape = (1, count) if d.chance(0.03) else (count,)
    return {"x": x, "dim": dim, "index": d.leaf(shape, "int", low, max(total, 1), dtype="int64")}


def _narrow(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    dim = d.dim(x, wrong=0)
    total = d.shape_of(x)[dim]
    start = d.rng.randint(0, total)
    return {"x": x, "dim": dim, "start": start, "length": d.rng.randint(0, total - start)}


def _masked(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    shape = tuple([1 if d.chance(0.15) else n for n in d.shape_of(x)])
    return {"x": x, "mask": d.leaf(shape, "bool"), "value": d.number()}


def _where(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick("float", "float", "any"))
    shape = tuple([1 if d.chance(0.15) else n for n in d.shape_of(x)])
    return {"mask": d.leaf(shape, "bool"), "x": x, "y": d.partner(x)}


def _add_at(d: Draw) -> dict[str, Any]:
    drawn = along(d, d.tensor("float", ndim=(1, 3)))
    return {**drawn, "y": d.leaf(d.shape_of(drawn["index"]), dtype=d.dtype_of(drawn["x"]))}


op("view", "x[index]", _view, weight=2.5)
op("pick", "x[index]", _pick, weight=2)
op("pick-mask", "x[x > c]", lambda d: {"x": d.tensor(), "c": d.pick(0, 0.25)}, weight=0.5)
for _name in ("x.gather(dim, index)", "t.gather(x, dim, index)"):
    op(_name[:8], _name, lambda d: along(d, d.tensor("float", ndim=(0, 3))))
op("x.index_select", "x.index_select(dim, index)", _select)
op("t.index_select", "t.index_select(x, dim, index)", _select, weight=0.5)
op("x.narrow", "x.narrow(dim, start, length)", _narrow, weight=0.7)
op("t.narrow", "t.narrow(x, dim, start, length)", _narrow, weight=0.7)
op("x.masked_fill", "x.masked_fill(mask, value)", _masked)
op("t.masked_fill", "t.masked_fill(x, mask, value)", _masked, weight=0.5)
op("x.masked_select", "x.masked_select(mask)", _masked, weight=0.7)
op("t.masked_select", "t.masked_select(x, mask)", _masked, weight=0.5)
op("t.where", "t.where(mask, x, y)", _where, weight=1.5)
op("x.where", "x.where(mask, y)", _where, weight=0.7)
op("x.scatter_add", "x.scatter_add(dim, index, y)", _add_at)
op("t.scatter_add", "t.scatter_add(x, dim, index, y)", _add_at, weight=0.5)
