"""The op suite: Empty batches, for ops whose family has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.engine.cases.case import NO_IDS, Case, normal, with_bits, with_classes, with_index
from tests.unit.engine.cases.interaction import cross, peer_cross, peer_fm


def _summed(name: str) -> Callable[..., Any]:
    return lambda t, f, x, y: getattr(f, name)(x, y, reduction="sum")


CASES = [
    *[
        Case(f"{name}-empty", call, normal((0, 5)))
        for name, call in {
            "relu": lambda t, f, x: f.relu(x),
            "softmax": lambda t, f, x: f.softmax(x, dim=1),
            "layer-norm": lambda t, f, x: f.layer_norm(x, (5,)),
            "sigmoid": lambda t, f, x: t.sigmoid(x),
            "gelu": lambda t, f, x: f.gelu(x),
            "silu": lambda t, f, x: f.silu(x),
            "log-softmax": lambda t, f, x: f.log_softmax(x, dim=1),
            "where": lambda t, f, x: t.where(x > 0, x, x * 2).sum(dim=1),
            "mean-dim": lambda t, f, x: x.mean(dim=1),
            "reshape": lambda t, f, x: x.reshape(5, 0),
            "transpose": lambda t, f, x: x.T @ x,
            "index": lambda t, f, x: x[:, 1:3],
            "split": lambda t, f, x: x.split([2, 3], 1),
            "stack": lambda t, f, x: t.stack([x, x]),
        }.items()
    ],
    Case("max-pool-empty", lambda t, f, x: f.max_pool2d(x, 2), normal((0, 2, 4, 4))),
    Case("avg-pool-empty", lambda t, f, x: f.avg_pool2d(x, 2), normal((0, 2, 4, 4))),
    Case("fm-empty", lambda t, f, x: f.factorization_machine(x), normal((0, 5, 2)), peer_fm),
    Case("cross-empty", cross, normal((0, 5), (0, 5), (5, 5), (5,)), peer_cross),
    Case("bce-empty", _summed("binary_cross_entropy_with_logits"), with_bits(0, 3)),
    Case("entropy-empty", _summed("cross_entropy"), with_classes((0, 3))),
    Case("nll-empty", _summed("nll_loss"), with_classes((0, 3))),
    Case("embedding-empty", lambda t, f, x, i: f.embedding(i, x), with_index((4, 3), NO_IDS)),
    *[
        Case(
            f"embedding-bag-{mode}-empty",
            lambda t, f, x, i, mode=mode: f.embedding_bag(i, x, mode=mode),
            with_index((4, 3), NO_IDS.reshape(0, 3)),
        )
        for mode in ("sum", "mean", "max")
    ],
]
