"""Ops of one or two operands, element by element."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.graph import Dtype, Ref
from tests.parity.fuzz.template import op

_FLOAT_OR_ANY = ("float", "float", "float", "float", "any")
_POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}


def _unary(name: str) -> Any:
    def draw(d: Draw) -> dict[str, Any]:
        if name in _POSITIVE and d.chance(0.5):
            return {"x": d.leaf(kind="positive")}
        return {"x": d.tensor(d.pick(*_FLOAT_OR_ANY))}

    return draw


def _pair(d: Draw) -> dict[str, Any]:
    kind = d.pick(*_FLOAT_OR_ANY)
    x = d.tensor(kind)
    y = d.partner(x, "float" if kind == "any" and d.chance(0.5) else d.kind_of(x))
    return {"x": x, "y": y}


def _tensors(d: Draw) -> dict[str, Any] | None:
    pair = _pair(d)
    return pair if isinstance(pair["y"], Ref) else None


def _number_first(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor(d.pick(*_FLOAT_OR_ANY)), "c": d.number()}


def _power(d: Draw) -> dict[str, Any]:
    if d.chance(0.3):
        x = d.leaf(kind="positive")
        return {"x": x, "y": d.partner(x)}
    return {"x": d.tensor(d.pick(*_FLOAT_OR_ANY)), "y": d.pick(2, 3, 1, 0, 2.0, 0.5, -1, -0.5, 1.5)}


def _scaled(d: Draw) -> dict[str, Any]:
    return {**_pair(d), "alpha": d.pick(2, 0.5, -1)}


def _bits(d: Draw) -> dict[str, Any]:
    kind = d.pick("int", "bool", "any")
    x = d.tensor(kind)
    if d.chance(0.3):
        return {"x": x, "y": d.pick(True, 1, 3)}
    return {"x": x, "y": d.leaf(d.shape_of(x), d.kind_of(x))}


def _clamp(d: Draw) -> dict[str, Any]:
    x = d.tensor(d.pick(*_FLOAT_OR_ANY))
    low, high = d.pick((-0.5, 0.5), (None, 0.25), (0, None), (-1, 2), (1.0, -1.0), (None, None))
    return {"x": x, "low": low, "high": high}


def _clamp_tensors(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    shape = d.shape_of(x)
    low = d.leaf(shape, dtype=d.dtype_of(x)) if d.chance(0.8) else None
    return {"x": x, "low": low, "high": d.leaf(shape, dtype=d.dtype_of(x))}


def _cast(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor("any")}


def _to(d: Draw) -> dict[str, Any]:
    names = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64")
    return {"x": d.tensor("any"), "dtype": Dtype(d.pick(*names, "bool"))}


_UNARY = ("abs", "cos", "exp", "log", "log1p", "relu", "sigmoid", "sin", "sqrt", "tanh", "erf")
_UNARY += (
    "reciprocal",
    "rsqrt",
    "square",
    "neg",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "bitwise_not",
)
for _name in _UNARY:
    op(f"t.{_name}", f"t.{_name}(x)", _unary(_name), weight=0.7)
    op(f"x.{_name}", f"x.{_name}()", _unary(_name), weight=0.4)
for _name in ("relu", "silu", "sigmoid", "tanh", "gelu", "softplus"):
    op(f"f.{_name}", f"f.{_name}(x)", _unary(_name), weight=0.6)
op("gelu-tanh", "f.gelu(x, approximate=how)", lambda d: {"x": d.tensor(), "how": "tanh"})
op("leaky-relu", "f.leaky_relu(x, slope)", lambda d: {"x": d.tensor(), "slope": d.pick(0.01, 0.5)})
op("neg", "-x", _unary("neg"))
op("invert", "~x", lambda d: {"x": d.tensor(d.pick("int", "bool"))})

for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "div": "/"}.items():
    op(_name, f"x {_sign} y", _pair, weight=2)
    op(f"r{_name}", f"c {_sign} x", _number_first, weight=0.5)
    op(f"x.{_name}", f"x.{_name}(y)", _pair, weight=0.5)
    op(f"t.{_name}", f"t.{_name}(x, y)", _pair, weight=0.5)
op("add-alpha", "x.add(y, alpha=alpha)", _scaled, weight=0.5)
op("sub-alpha", "x.sub(y, alpha=alpha)", _scaled, weight=0.5)
for _name, _sign in {"floordiv": "//", "mod": "%"}.items():
    op(_name, f"x {_sign} y", _pair)
    op(f"r{_name}", f"c {_sign} x", _number_first, weight=0.5)
for _name in ("floor_divide", "remainder"):
    op(f"t.{_name}", f"t.{_name}(x, y)", _pair, weight=0.5)
    op(f"x.{_name}", f"x.{_name}(y)", _pair, weight=0.5)
for _name, _sign in {"and": "&", "or": "|", "xor": "^"}.items():
    op(_name, f"x {_sign} y", _bits, weight=0.5)
    op(
        f"r{_name}",
        f"c {_sign} x",
        lambda d: {"c": d.pick(True, 1, 3), "x": d.tensor("int")},
        weight=0.3,
    )
    op(f"t.bitwise_{_name}", f"t.bitwise_{_name}(x, y)", _bits, weight=0.3)
    op(f"t.logical_{_name}", f"t.logical_{_name}(x, y)", _tensors, weight=0.3)
    op(f"x.bitwise_{_name}", f"x.bitwise_{_name}(y)", _bits, weight=0.3)
    op(f"x.logical_{_name}", f"x.logical_{_name}(y)", _tensors, weight=0.3)

op("pow", "x ** y", _power, weight=1.5)
op("rpow", "c ** x", lambda d: {"x": d.tensor(), "c": d.pick(2, 2.0, 0.5, 0)}, weight=0.5)
op("x.pow", "x.pow(y)", _power, weight=0.5)
op("t.pow", "t.pow(x, y)", _power, weight=0.5)
for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    op(_name, f"x {_sign} y", _pair, weight=0.5)
    op(f"x.{_name}", f"x.{_name}(y)", _pair, weight=0.3)
    op(f"t.{_name}", f"t.{_name}(x, y)", _pair, weight=0.3)
for _name in ("maximum", "minimum"):
    op(f"t.{_name}", f"t.{_name}(x, y)", _tensors)
op("x.clamp", "x.clamp(low, high)", _clamp)
op("t.clamp", "t.clamp(x, min=low, max=high)", _clamp, weight=0.5)
op("clamp-tensors", "t.clamp(x, low, high)", _clamp_tensors, weight=0.5)

for _name in ("float", "double", "half", "bfloat16", "int", "long", "bool"):
    op(f"x.{_name}", f"x.{_name}()", _cast, weight=0.2)
op("x.to", "x.to(dtype)", _to, weight=0.6)
op("x.to-dtype", "x.to(dtype=dtype)", _to, weight=0.3)
op("x.to-device", "x.to('cpu')", _cast, weight=0.1)
op("x.cpu", "x.cpu()", _cast, weight=0.1)
op("x.clone", "x.clone()", _cast, weight=0.5)
op("x.detach", "x.detach()", _cast, weight=0.2)
op("x.contiguous", "x.contiguous()", _cast, weight=0.3)
