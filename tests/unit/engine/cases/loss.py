"""The op suite: Losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.engine.cases.case import Case, Fixed, distinct, normal, with_bits, with_classes


def with_weights(shape: tuple[int, ...], is_soft: bool) -> Callable[[Any], list[Any]]:
    """Draw logits, probabilities or class numbers of which one is ignored, and class weights."""

    def draw(rng: Any) -> list[Any]:
        if is_soft:
            x, target = rng.normal(size=shape), rng.uniform(0.1, 1.0, size=shape)
        else:
            x, target = with_classes(shape, ignore=True)(rng)
        return [x, target, Fixed(rng.uniform(0.5, 2.0, size=shape[0 if len(shape) == 1 else 1]))]

    return draw


CASES = [
    Case("mse", lambda t, f, a, b: f.mse_loss(a, b), normal((3, 5), (3, 5))),
    Case("mse-none", lambda t, f, a, b: f.mse_loss(a, b, reduction="none"), normal((3,), (3,))),
    Case("bce", lambda t, f, a, y: f.binary_cross_entropy_with_logits(a, y), with_bits(7, 1)),
    Case(
        "bce-sum",
        lambda t, f, a, y: f.binary_cross_entropy_with_logits(10 * a, y, reduction="sum"),
        with_bits(7),
    ),
    Case(
        "bce-weights",
        lambda t, f, a, y: f.binary_cross_entropy_with_logits(
            a, y, weight=y + 0.5, pos_weight=y + 2
        ),
        with_bits(7),
    ),
    Case("cross-entropy", lambda t, f, x, y: f.cross_entropy(x, y), with_classes((5, 7))),
    Case(
        "cross-entropy-ignore",
        lambda t, f, x, y: f.cross_entropy(x, y, reduction="sum"),
        with_classes((5, 3), ignore=True),
    ),
    Case(
        "cross-entropy-pixels",
        lambda t, f, x, y: f.cross_entropy(x, y, label_smoothing=0.1),
        with_classes((2, 3, 4, 5), ignore=True),
    ),
    Case(
        "nll",
        lambda t, f, x, y: f.nll_loss(f.log_softmax(x, dim=1), y),
        with_classes((5, 3), ignore=True),
    ),
    Case("nll-none", lambda t, f, x, y: f.nll_loss(x, y, reduction="none"), with_classes((5, 3))),
    Case("mse-empty", lambda t, f, a, b: f.mse_loss(a, b, reduction="sum"), normal((0, 2), (0, 2))),
    Case("l1", lambda t, f, a, b: f.l1_loss(a, b), distinct((3, 5), (3, 5))),
    *[
        Case(
            f"{name}-{reduction}",
            lambda t, f, a, b, name=name, options=options, reduction=reduction: getattr(f, name)(
                a, b, reduction=reduction, **options
            ),
            distinct((3, 5), (3, 5)),
        )
        for name, options in (
            ("l1_loss", {}),
            ("huber_loss", {"delta": 0.55}),
            ("smooth_l1_loss", {"beta": 0.55}),
        )
        for reduction in ("mean", "sum", "none")
    ],
    Case("huber", lambda t, f, a, b: f.huber_loss(a, b), normal((3, 5), (3, 5))),
    Case("smooth-l1", lambda t, f, a, b: f.smooth_l1_loss(a, b), normal((), ())),
    Case(
        "smooth-l1-sharp", lambda t, f, a, b: f.smooth_l1_loss(a, b, beta=0), distinct((7,), (7,))
    ),
    *[
        Case(
            f"{name}-empty",
            lambda t, f, a, b, name=name: getattr(f, name)(a, b, reduction="sum"),
            normal((0, 5), (0, 5)),
        )
        for name in ("l1_loss", "huber_loss", "smooth_l1_loss")
    ],
    *[
        Case(
            f"cross-entropy-{'soft' if is_soft else 'hard'}-{smoothing}-{reduction}",
            lambda t, f, x, y, w, smoothing=smoothing, reduction=reduction: f.cross_entropy(
                x, y, weight=w, reduction=reduction, label_smoothing=smoothing
            ),
            with_weights((2, 3, 4), is_soft),
        )
        for is_soft in (False, True)
        for smoothing in (0.0, 0.2)
        for reduction in ("mean", "sum", "none")
    ],
    Case(
        "cross-entropy-soft",
        lambda t, f, x, y, w: f.cross_entropy(x, y),
        with_weights((5, 3), is_soft=True),
    ),
    Case(
        "cross-entropy-soft-row",
        lambda t, f, x, y, w: f.cross_entropy(x, y, label_smoothing=1.0),
        with_weights((4,), is_soft=True),
    ),
    Case(
        "cross-entropy-soft-empty",
        lambda t, f, x, y, w: f.cross_entropy(x, y, reduction="sum"),
        with_weights((0, 3), is_soft=True),
    ),
]
