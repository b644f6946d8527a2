"""Layers with random constructor arguments, parameters and inputs."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.catalogue.matrices import _image, _pair
from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.template import op


def _state(d: Draw, x: Any) -> dict[str, Any]:
    return {
        "x": x,
        "state": d.rng.randrange(1000),
        "dtype": d.dtype_of(x),
        "training": d.chance(0.7),
    }


def _linear(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    return {
        **_state(d, x),
        "wide": d.shape_of(x)[-1] + (1 if d.chance(0.02) else 0),
        "out": d.rng.randint(1, 4),
        "bias": d.chance(0.7),
    }


def _conv(ndim: int) -> Any:
    def draw(d: Draw) -> dict[str, Any]:
        x = _image(d, ndim)
        channels = d.shape_of(x)[1] or 1
        groups = d.pick(1, 2) if channels % 2 == 0 else 1
        return {
            **_state(d, x),
            "channels": channels,
            "out": groups * d.rng.randint(1, 2),
            "size": d.rng.randint(1, 3),
            "stride": d.rng.randint(1, 2),
            "padding": d.rng.randint(0, 2),
            "dilation": d.pick(1, 1, 2),
            "groups": groups,
            "bias": d.chance(0.6),
        }

    return draw


def _batch_norm(*ndims: int) -> Any:
    def draw(d: Draw) -> dict[str, Any] | None:
        x = d.tensor("float", ndim=d.pick(*ndims))
        channels = d.shape_of(x)[1]
        if not channels:
            return None
        return {
            **_state(d, x),
            "channels": channels,
            "momentum": d.pick(0.1, 0.5, None),
            "eps": d.pick(1e-5, 0.1),
            "affine": d.chance(0.7),
            "track": d.chance(0.8),
        }

    return draw


def _functional_norm(d: Draw) -> dict[str, Any] | None:
    x = d.tensor("float" if d.chance(0.97) else "any", ndim=(2, 4))
    dtype, channels = d.dtype_of(x), (d.shape_of(x)[1],)
    if not channels[0]:
        return None
    affine = d.chance(0.7)
    return {
        "x": x,
        "w": d.leaf(channels, dtype=dtype, is_plain=True) if affine else None,
        "b": d.leaf(channels, dtype=dtype, is_plain=True) if affine else None,
        "mean": d.leaf(channels, dtype=dtype, requires_grad=False, is_plain=True),
        "var": d.leaf(channels, "positive", dtype=dtype, requires_grad=False, is_plain=True),
        "training": d.chance(0.5),
    }


def _layer_norm(d: Draw) -> dict[str, Any]:
    x = d.tensor("float" if d.chance(0.97) else "any", ndim=(1, 4))
    shape = d.shape_of(x)
    last = shape[-d.rng.randint(1, len(shape)) :]
    dtype = d.dtype_of(x)
    return {
        **_state(d, x),
        "last": last,
        "eps": d.pick(1e-5, 0.1),
        "affine": d.chance(0.7),
        "bias": d.chance(0.7),
        "w": d.leaf(last, dtype=dtype) if d.chance(0.6) else None,
        "b": d.leaf(last, dtype=dtype) if d.chance(0.6) else None,
    }


def _group_norm(d: Draw) -> dict[str, Any]:
    shape = (d.length(), d.pick(2, 4), *d.shape(d.pick(0, 1, 2)))
    x = d.tensor("float", shape=shape)
    # In its own dtype: torch crashes in backward where the layer has another.
    dtype = d.dtype_of(x)
    scale = d.leaf((shape[1],), dtype=dtype) if d.chance(0.6) else None
    return {
        **_state(d, x),
        "dtype": dtype,
        "w": scale,
        "b": scale,
        "groups": d.pick(1, 2),
        "channels": shape[1],
        "affine": d.chance(0.7),
    }


def _pool(d: Draw) -> dict[str, Any]:
    size = _pair(d, 1, 3)
    return {"x": _image(d), "size": size, "stride": d.pick(None, 1, 2), "padding": d.pick(0, 0, 1)}


def _plain(d: Draw) -> dict[str, Any]:
    return {"x": d.tensor("float"), "slope": d.pick(0.01, 0.5), "how": d.pick("none", "tanh")}


def _dim(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    return {"x": x, "dim": d.dim(x)}


def _attention(d: Draw) -> dict[str, Any]:
    heads = d.pick(1, 2)
    wide = heads * d.pick(2, 4)
    x = d.leaf((2, d.rng.randint(1, 3), wide))
    return {**_state(d, x), "wide": wide, "heads": heads, "bias": d.chance(0.7)}


_APPLY = "state, dtype, training, x)"
op("n.Linear", f"apply(n.Linear(wide, out, bias=bias), {_APPLY}", _linear, weight=1.5)
op(
    "n.Sequential",
    f"apply(n.Sequential(n.Linear(wide, 3), n.ReLU(), n.Linear(3, out, bias=bias)), {_APPLY}",
    _linear,
)
op(
    "n.MLP",
    f"apply(n.MLP([wide, 3, out], final_relu=bias), {_APPLY}",
    _linear,
    peer="apply(n.Sequential(n.Linear(wide, 3), n.ReLU(), n.Linear(3, out), n.ReLU() if bias else"
    f" n.Identity()), {_APPLY}",
)
_OPTIONS = "stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias"
op("n.Conv1d", f"apply(n.Conv1d(channels, out, size, {_OPTIONS}), {_APPLY}", _conv(3))
op("n.Conv2d", f"apply(n.Conv2d(channels, out, size, {_OPTIONS}), {_APPLY}", _conv(4))
_NORM = "channels, eps=eps, momentum=momentum, affine=affine, track_running_stats=track"
# Torch's backward of a batch norm reads and writes wrong memory where strides of images or of
# gradients are ambiguous, so it gets copies, and a reshape that makes its gradients contiguous.
_COPY = "x.clone(memory_format=t.contiguous_format)"
_BACK = ".reshape(-1).reshape(x.shape)"
for _layer, _ndims in (("BatchNorm1d", (2, 3)), ("BatchNorm2d", (4,))):
    _text = f"apply(n.{_layer}({_NORM}), state, dtype, training, "
    op(f"n.{_layer}", f"{_text}x)", _batch_norm(*_ndims), peer=f"{_text}{_COPY}){_BACK}")
_text = "f.batch_norm({}, mean, var, w, b, training=training)"
op("batch-norm", _text.format("x"), _functional_norm, peer=_text.format(_COPY) + _BACK)
op(
    "n.LayerNorm",
    f"apply(n.LayerNorm(last, eps=eps, elementwise_affine=affine, bias=bias), {_APPLY}",
    _layer_norm,
)
op("layer-norm", "f.layer_norm(x, last, w, b, eps)", _layer_norm)
op("f.group_norm", "f.group_norm(x, groups, w, b)", _group_norm, weight=0.5)
op("n.GroupNorm", f"apply(n.GroupNorm(groups, channels, affine=affine), {_APPLY}", _group_norm)
op(
    "n.MultiheadAttention",
    "apply(n.MultiheadAttention(wide, heads, bias=bias, batch_first=True), state, dtype, training,"
    " x, x, x)[0]",
    _attention,
)
op("n.MaxPool2d", "n.MaxPool2d(size, stride, padding)(x)", _pool, weight=0.5)
op("n.AvgPool2d", "n.AvgPool2d(size, stride, padding)(x)", _pool, weight=0.5)
op("n.AdaptiveAvgPool2d", "n.AdaptiveAvgPool2d(size)(x)", _pool, weight=0.4)
for _name in ("Identity", "ReLU", "Sigmoid", "Tanh", "SiLU", "Softplus", "GELU", "Flatten"):
    op(f"n.{_name}", f"n.{_name}()(x)", _plain, weight=0.3)
op("n.LeakyReLU", "n.LeakyReLU(slope)(x)", _plain, weight=0.3)
op("n.GELU-how", "n.GELU(approximate=how)(x)", _plain, weight=0.3)
for _name in ("Softmax", "LogSoftmax"):
    op(f"n.{_name}", f"n.{_name}(dim)(x)", _dim, weight=0.4)
op("n.Dropout", "n.Dropout(slope).eval()(x)", _plain, weight=0.2)
op("n.Dropout-all", "n.Dropout(1.0)(x)", _plain, weight=0.2)
for _text in ("f.dropout(x, 0.0)", "f.dropout(x, 1.0)", "f.dropout(x, slope, training=False)"):
    op(_text, _text, _plain, weight=0.2)
