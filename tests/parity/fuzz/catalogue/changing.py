"""Changes in place, also those that must raise."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.catalogue.indexing import along, basic
from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.graph import Leaf, Ref
from tests.parity.fuzz.template import op


def _target(d: Draw) -> Ref | None:
    """Choose a tensor to change, seldom one that refuses: a leaf with a gradient, or a view."""
    refs = [r for r in d.refs if d.kind_of(r) == "float"]
    if not d.chance(0.1):
        refs = [r for r in refs if _may_change(d, r)]
    return d.rng.choice(refs) if refs else None


def _may_change(d: Draw, ref: Ref) -> bool:
    tensor, item = d.of(ref), d.graph.items[ref.slot]
    if isinstance(item, Leaf) and item.layout[0] == "broadcast":
        return False
    return tensor._base is None and not (tensor.is_leaf and tensor.requires_grad)


def _with(d: Draw) -> dict[str, Any] | None:
    x = _target(d)
    if x is None:
        return None
    if d.chance(0.3):
        return {"x": x, "y": d.number()}
    shape = d.shape_of(x)[d.pick(0, 0, 1) :]
    return {"x": x, "y": d.tensor("float", shape=tuple([1 if d.chance(0.1) else n for n in shape]))}


def _power(d: Draw) -> dict[str, Any] | None:
    x = _target(d)
    return None if x is None else {"x": x, "y": d.pick(2, 3, 1, 0)}


def _bits(d: Draw) -> dict[str, Any] | None:
    refs = [r for r in d.refs if d.kind_of(r) in ("int", "bool") and _may_change(d, r)]
    if not refs:
        return None
    x = d.rng.choice(refs)
    if d.chance(0.3):
        return {"x": x, "y": d.pick(True, 1, 3)}
    return {"x": x, "y": d.leaf(d.shape_of(x), d.kind_of(x))}


def _ids(d: Draw) -> dict[str, Any] | None:
    """Choose integers or bools, which an op may have taken for ids or a mask."""
    refs = [r for r in d.refs if d.kind_of(r) in ("int", "bool") and _may_change(d, r)]
    return {"x": d.rng.choice(refs), "c": d.pick(0, 1)} if refs else None


def _copy(d: Draw) -> dict[str, Any] | None:
    drawn = _with(d)
    return drawn if drawn and isinstance(drawn["y"], Ref) else None


def _alone(d: Draw) -> dict[str, Any] | None:
    x = _target(d)
    return None if x is None else {"x": x}


def _value(d: Draw) -> dict[str, Any] | None:
    x = _target(d)
    return None if x is None else {"x": x, "c": d.number()}


def _items(d: Draw) -> dict[str, Any] | None:
    x = _target(d)
    if x is None:
        return None
    shape = d.shape_of(x)
    index = basic(d, shape) if d.chance(0.6) else _distinct(d, shape)
    if index is None:
        return None
    if d.chance(0.4):
        return {"x": x, "index": index, "y": d.number()}
    try:
        from tests.parity.fuzz.graph import replaced

        part = tuple(d.of(x).detach()[replaced(index, d.of)].shape)
    except Exception:
        return {"x": x, "index": index, "y": d.number()}
    part = part[1:] if part and d.chance(0.2) else part
    part = (1, *part) if d.chance(0.1) else part
    y = d.tensor("float", shape=part)
    # Copying a tensor onto its own memory depends on the order of the copy.
    shares = d.of(y).untyped_storage().data_ptr() == d.of(x).untyped_storage().data_ptr()
    return {"x": x, "index": index, "y": d.leaf(part, dtype=d.dtype_of(x)) if shares else y}


def _distinct(d: Draw, shape: tuple[int, ...]) -> Any:
    """Draw an index that names no element twice: which value would stay is not defined."""
    if not shape or not all(shape):
        return None
    if d.chance(0.5):
        return d.leaf(shape, "bool")
    return d.rng.sample(range(shape[0]), d.rng.randint(1, shape[0]))


def _add_at(d: Draw) -> dict[str, Any] | None:
    x = _target(d)
    if x is None or not d.shape_of(x):
        return None
    drawn = along(d, x)
    return {**drawn, "y": d.leaf(d.shape_of(drawn["index"]), dtype=d.dtype_of(x))}


for _name in ("add", "sub", "mul", "div"):
    op(f"x.{_name}_", f"x.{_name}_(y)", _with, inplace=True)
for _name in ("floor_divide", "remainder"):
    op(f"x.{_name}_", f"x.{_name}_(y)", _with, inplace=True, weight=0.3)
for _name in ("ifloordiv", "imod"):
    op(_name, f"operator.{_name}(x, y)", _with, inplace=True, weight=0.3)
for _name in ("iand", "ior", "ixor"):
    op(_name, f"operator.{_name}(x, y)", _bits, inplace=True, weight=0.5)
for _name in ("iadd", "isub", "imul", "itruediv"):
    op(_name, f"operator.{_name}(x, y)", _with, inplace=True)
op("ipow", "operator.ipow(x, y)", _power, inplace=True, weight=0.5)
op("x.zero_", "x.zero_()", _alone, inplace=True, weight=0.7)
op("x.copy_", "x.copy_(y)", _copy, inplace=True)
op("x.fill_", "x.fill_(c)", _value, inplace=True)
op("x.fill_-ids", "x.fill_(c)", _ids, inplace=True)
op("setitem", "operator.setitem(x, index, y)", _items, inplace=True, weight=2)
op("x.scatter_add_", "x.scatter_add_(dim, index, y)", _add_at, inplace=True)
op("x.requires_grad_", "x.requires_grad_()", _alone, inplace=True, weight=0.2)
