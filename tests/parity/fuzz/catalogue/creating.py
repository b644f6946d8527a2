"""Making tensors; of random ones only shape, dtype and range can be compared."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.graph import Dtype
from tests.parity.fuzz.template import op

_NAMES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "int8", "int16")


def _shape(d: Draw) -> dict[str, Any]:
    return {"shape": d.shape()}


def _typed(d: Draw) -> dict[str, Any]:
    return {"shape": d.shape(), "dtype": Dtype(d.pick(*_NAMES))}


def _full(d: Draw) -> dict[str, Any]:
    return {"shape": d.shape(), "c": d.number()}


def _nested(d: Draw) -> dict[str, Any]:
    row = [d.pick(1, 2, 0.5) for _ in range(3)]
    data = d.pick(1.5, 2, True, [], [1, 2, 3], [1.0, 2], [True, False], [[1, 2], [3, 4]], row, [[]])
    return {"data": data}


def _bounds(d: Draw) -> dict[str, Any]:
    return {"bounds": d.pick((3,), (0,), (2.5,), (1, 5), (1, 6, 2), (0.0, 1.0, 0.25), (5, 1, -2))}


def _like(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor("any")}


def _matrix(d: Draw) -> dict[str, Any]:
    return {"shape": d.shape(2)}


for _name in ("zeros", "ones"):
    op(f"t.{_name}", f"t.{_name}(shape)", _shape, weight=0.2)
    op(
        f"t.{_name}-apart",
        f"t.{_name}(*shape)",
        lambda d: a if (a := _shape(d))["shape"] else None,
        weight=0.1,
    )
    op(f"t.{_name}-dtype", f"t.{_name}(shape, dtype=dtype)", _typed, weight=0.2)
for _name in ("zeros_like", "ones_like"):
    op(f"t.{_name}", f"t.{_name}(x)", _like, weight=0.2)
op("t.empty", "t.empty(shape, dtype=dtype).zero_()", _typed, weight=0.2)
op("t.full", "t.full(shape, c)", _full, weight=0.2)
op(
    "t.full-dtype",
    "t.full(shape, c, dtype=dtype)",
    lambda d: {**_typed(d), "c": d.pick(2, 1)},
    weight=0.2,
)
op("t.arange", "t.arange(*bounds)", _bounds, weight=0.2)
op("t.tensor", "t.tensor(data)", _nested, weight=0.3)
op("t.as_tensor", "t.as_tensor(data)", _nested, weight=0.2)
op("t.as_tensor-same", "t.as_tensor(x)", _like, weight=0.2)
op("t.rand", "t.rand(shape) < 1", _shape, weight=0.2)
op("x.randn", "t.randn(shape).isfinite()", _shape, weight=0.2)
op("t.randint", "t.randint(2, 5, shape) > 1", _shape, weight=0.2)
op("t.randint-dtype", "t.randint(2, 3, shape)", _shape, weight=0.2)
for _name in ("zeros_", "ones_", "eye_"):
    op(f"n.init.{_name}", f"n.init.{_name}(t.empty(shape))", _matrix, weight=0.1)
op("n.init.constant_", "n.init.constant_(t.empty(shape), c)", _full, weight=0.1)
