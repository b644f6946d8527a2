"""Matrix products, linear maps, convolutions and pools."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.template import op


def _product(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    shape = d.shape_of(x)
    batch = [1 if d.chance(0.2) else n for n in shape[:-2]][d.pick(0, 0, 1) :]
    inner = shape[-1] + (1 if d.chance(0.02) else 0)
    other = (inner,) if d.chance(0.25) else (*batch, inner, d.length())
    dtype = d.dtype_of(x) if d.chance(0.98) else None
    return {"x": x, "y": d.leaf(other, dtype=dtype)}


def _square(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(2, 3))
    return {"x": x, "y": x}


def _of_axes(ndim: int) -> Any:
    def draw(d: Draw) -> dict[str, Any]:
        x = d.tensor("float", ndim=ndim if d.chance(0.97) else (1, 3))
        shape = d.shape_of(x)
        other = shape if ndim == 1 else (*shape[:-2], shape[-1], d.length())
        return {"x": x, "y": d.leaf(other, dtype=d.dtype_of(x))}

    return draw


def _linear(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    dtype = d.dtype_of(x)
    wide = d.length() or 1
    bias = d.leaf((wide,), dtype=dtype) if d.chance(0.6) else None
    width = d.shape_of(x)[-1] + (1 if d.chance(0.02) else 0)
    return {"x": x, "w": d.leaf((wide, width), dtype=dtype), "b": bias}


def _image(d: Draw, ndim: int = 4) -> Any:
    """Return images; reuse one that the graph has if it is large enough."""
    space = ndim - 2
    if d.chance(0.3):
        # Torch gives convolutions of no channels a shape of their own.
        return d.tensor("float", ndim=ndim, test=lambda s: s[1] > 0)
    shape = (d.length(), d.pick(1, 2, 4), *[d.rng.randint(2, 6) for _ in range(space)])
    return d.leaf(shape)


def _pair(d: Draw, low: int, high: int) -> Any:
    return (
        d.rng.randint(low, high)
        if d.chance(0.6)
        else (d.rng.randint(low, high), d.rng.randint(low, high))
    )


def _conv(ndim: int) -> Any:
    def draw(d: Draw) -> dict[str, Any]:
        x = _image(d, ndim)
        dtype = d.dtype_of(x)
        channels = d.shape_of(x)[1]
        groups = d.pick(1, 1, 2) if channels % 2 == 0 and channels else 1
        out = groups * d.rng.randint(1, 2)
        size = tuple([d.rng.randint(1, 3) for _ in range(ndim - 2)])
        extra = 1 if d.chance(0.02) else 0
        weight = d.leaf((out, channels // groups + extra, *size), dtype=dtype)
        single = ndim == 3
        return {
            "x": x,
            "w": weight,
            "b": d.leaf((out,), dtype=dtype) if d.chance(0.5) else None,
            "stride": d.rng.randint(1, 2) if single else _pair(d, 1, 2),
            "padding": d.rng.randint(0, 2) if single else _pair(d, 0, 2),
            "dilation": d.pick(1, 1, 1, 2),
            "groups": groups,
        }

    return draw


def _pool(d: Draw) -> dict[str, Any]:
    return {
        "x": _image(d),
        "size": _pair(d, 1, 3),
        "stride": d.pick(None, 1, 2, (2, 1)),
        "padding": d.pick(0, 0, 1),
    }


def _adaptive(d: Draw) -> dict[str, Any]:
    return {"x": _image(d), "size": _pair(d, 1, 3)}


def _einsum(d: Draw) -> dict[str, Any]:
    a, b, c = d.length(), d.length(), d.length()
    dtype = d.dtype
    text, shapes = d.pick(
        ("ij,jk->ik", ((a, b), (b, c))),
        ("ij,ij->i", ((a, b), (a, b))),
        ("bij,bjk->bik", ((2, a, b), (2, b, c))),
        ("ij->ji", ((a, b),)),
        ("ij->", ((a, b),)),
        ("i,j->ij", ((a,), (b,))),
        ("ii->i", ((a, a),)),
        ("...i,i->...", ((b, c, a), (a,))),
        ("ij,jk", ((a, b), (b, c))),
    )
    return {"text": text, "xs": [d.leaf(s, dtype=dtype) for s in shapes]}


op("matmul", "x @ y", _product, weight=2)
op("matmul-square", "x @ y.transpose(-1, -2)", _square, weight=0.7)
op("x.matmul", "x.matmul(y)", _product, weight=0.5)
op("t.matmul", "t.matmul(x, y)", _product, weight=0.5)
for _name, _ndim in {"mm": 2, "bmm": 3, "dot": 1}.items():
    op(f"x.{_name}", f"x.{_name}(y)", _of_axes(_ndim), weight=0.6)
    op(f"t.{_name}", f"t.{_name}(x, y)", _of_axes(_ndim), weight=0.4)
op("t.einsum", "t.einsum(text, *xs)", _einsum, weight=1.5)
op("linear", "f.linear(x, w, b)", _linear, weight=1.5)
op("linear-relu", "f.linear_relu(x, w, b)", _linear, peer="f.relu(f.linear(x, w, b))", weight=0.7)
_OPTIONS = "stride=stride, padding=padding, dilation=dilation, groups=groups"
op("conv1d", f"f.conv1d(x, w, b, {_OPTIONS})", _conv(3))
op("conv2d", f"f.conv2d(x, w, b, {_OPTIONS})", _conv(4))
op("max-pool", "f.max_pool2d(x, size, stride, padding)", _pool)
op("avg-pool", "f.avg_pool2d(x, size, stride, padding)", _pool)
op("adaptive-pool", "f.adaptive_avg_pool2d(x, size)", _adaptive, weight=0.7)
