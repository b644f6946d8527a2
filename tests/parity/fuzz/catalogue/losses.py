"""Losses, as functions and as layers."""

from __future__ import annotations

from typing import Any

from tests.parity.fuzz.draw import Draw
from tests.parity.fuzz.template import op


def _how(d: Draw) -> str:
    return d.pick("mean", "mean", "sum", "none") if d.chance(0.98) else "middle"


def _regression(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    shape = d.shape_of(x)
    y = d.tensor("float", shape=shape)
    if d.chance(0.2):
        # Shorter by axes in front, or of length 1: the two broadcast.
        kept = shape[d.rng.randint(0, len(shape)) :]
        y = d.leaf(tuple([1 if d.chance(0.3) else n for n in kept]))
    return {"x": x, "y": y, "how": _how(d), "beta": d.pick(1.0, 0.5)}


def _huber(d: Draw) -> dict[str, Any]:
    drawn = _regression(d)
    if d.dtype_of(drawn["y"]) != d.dtype_of(drawn["x"]):
        # Torch gives Huber's loss of two dtypes one of them and no gradient.
        drawn["y"] = d.leaf(d.shape_of(drawn["y"]), dtype=d.dtype_of(drawn["x"]))
    return drawn


def _bits(d: Draw, shape: tuple[int, ...], dtype: str) -> Any:
    return d.leaf(shape, "positive", dtype=dtype, requires_grad=False)


def _binary(d: Draw) -> dict[str, Any]:
    x = d.tensor("float")
    shape, dtype = d.shape_of(x), d.dtype_of(x)
    heavy = shape[-1:] if d.chance(0.5) else shape
    weight = d.pick(shape, shape, shape[-1:], (), (1, *shape), (3, *shape))
    return {
        "x": x,
        "y": d.leaf(shape, dtype=dtype) if d.chance(0.3) else _bits(d, shape, dtype),
        "weight": _bits(d, weight, dtype) if d.chance(0.3) else None,
        "heavy": _bits(d, heavy, dtype) if d.chance(0.3) else None,
        "how": _how(d),
    }


def _classes(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 4))
    shape = d.shape_of(x)
    classes = shape[0] if len(shape) == 1 else shape[1]
    wanted = () if len(shape) == 1 else (shape[0], *shape[2:])
    high = classes + (1 if d.chance(0.02) else 0)
    y = d.leaf(wanted, "int", 0, max(high, 1), dtype="int64")
    ignored = d.pick(-100, -100, 0, 1)
    dtype = d.dtype_of(x)
    weight = _bits(d, (classes,), dtype) if d.chance(0.3) else None
    return {
        "x": x,
        "y": y,
        "weight": weight,
        "ignore": ignored,
        "how": _how(d),
        "smooth": d.pick(0.0, 0.0, 0.1, 0.5),
    }


def _probabilities(d: Draw) -> dict[str, Any]:
    x = d.tensor("float", ndim=(1, 3))
    shape, dtype = d.shape_of(x), d.dtype_of(x)
    y = d.leaf(shape, "positive", dtype=dtype)
    classes = shape[0] if len(shape) == 1 else shape[1]
    weight = d.leaf((classes,), "positive", dtype=dtype) if d.chance(0.3) else None
    return {"x": x, "y": y, "weight": weight, "how": _how(d), "smooth": d.pick(0.0, 0.1)}


for _name in ("mse_loss", "l1_loss"):
    op(f"f.{_name}", f"f.{_name}(x, y, reduction=how)", _regression)
op("f.smooth_l1_loss", "f.smooth_l1_loss(x, y, reduction=how, beta=beta)", _regression)
op("f.huber_loss", "f.huber_loss(x, y, reduction=how, delta=beta)", _huber)
op(
    "f.bce",
    "f.binary_cross_entropy_with_logits(x, y, weight=weight, reduction=how, pos_weight=heavy)",
    _binary,
)
op("f.nll", "f.nll_loss(x, y, weight=weight, ignore_index=ignore, reduction=how)", _classes)
op(
    "f.cross_entropy",
    "f.cross_entropy(x, y, weight=weight, ignore_index=ignore, reduction=how,"
    " label_smoothing=smooth)",
    _classes,
)
op(
    "f.cross_entropy-probabilities",
    "f.cross_entropy(x, y, weight=weight, reduction=how, label_smoothing=smooth)",
    _probabilities,
    weight=0.4,
)
for _name in ("MSELoss", "L1Loss"):
    op(f"n.{_name}", f"n.{_name}(reduction=how)(x, y)", _regression, weight=0.4)
op("n.SmoothL1Loss", "n.SmoothL1Loss(reduction=how, beta=beta)(x, y)", _regression, weight=0.4)
op("n.HuberLoss", "n.HuberLoss(reduction=how, delta=beta)(x, y)", _huber, weight=0.4)
op(
    "n.BCE",
    "n.BCEWithLogitsLoss(weight=weight, reduction=how, pos_weight=heavy)(x, y)",
    _binary,
    weight=0.4,
)
op(
    "n.NLL",
    "n.NLLLoss(weight=weight, ignore_index=ignore, reduction=how)(x, y)",
    _classes,
    weight=0.4,
)
op(
    "n.CrossEntropy",
    "n.CrossEntropyLoss(weight=weight, ignore_index=ignore, reduction=how,"
    " label_smoothing=smooth)(x, y)",
    _classes,
    weight=0.4,
)
