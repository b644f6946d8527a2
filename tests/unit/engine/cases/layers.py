"""The op suite: Convolution, pooling and normalisation."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, distinct, normal

CASES = [
    Case("conv", lambda t, f, x, w, b: f.conv2d(x, w, b), normal((2, 3, 5, 4), (4, 3, 3, 2), (4,))),
    Case("conv-point", lambda t, f, x, w: f.conv2d(x, w), normal((2, 3, 5, 4), (4, 3, 1, 1))),
    Case(
        "conv-point-strided",
        lambda t, f, x, w: f.conv2d(x, w, stride=2),
        normal((2, 3, 5, 4), (4, 3, 1, 1)),
    ),
    Case(
        "conv-strided",
        lambda t, f, x, w: f.conv2d(x, w, stride=(2, 1), padding=(1, 2)),
        normal((1, 2, 5, 6), (3, 2, 3, 3)),
    ),
    Case(
        "conv-groups",
        lambda t, f, x, w, b: f.conv2d(x, w, b, padding=1, groups=2),
        normal((2, 4, 4, 3), (6, 2, 3, 3), (6,)),
    ),
    Case(
        "conv-dilated",
        lambda t, f, x, w: f.conv2d(x, w, dilation=2, padding=2),
        normal((1, 2, 5, 6), (3, 2, 3, 3)),
    ),
    Case("conv-empty", lambda t, f, x, w: f.conv2d(x, w), normal((0, 2, 5, 6), (3, 2, 3, 3))),
    Case(
        "conv-same",
        lambda t, f, x, w: f.conv2d(x, w, padding="same"),
        normal((1, 2, 5, 6), (3, 2, 2, 3)),
        # torch warns of its own way.
        lambda t, f, x, w: f.conv2d(f.pad(x, (1, 1, 0, 1)), w),
    ),
    Case("conv1d", lambda t, f, x, w, b: f.conv1d(x, w, b), normal((2, 3, 5), (4, 3, 3), (4,))),
    Case(
        "conv1d-strided",
        lambda t, f, x, w, b: f.conv1d(x, w, b, stride=2, padding=1, dilation=2, groups=2),
        normal((2, 4, 7), (6, 2, 3), (6,)),
    ),
    Case(
        "conv1d-same",
        lambda t, f, x, w: f.conv1d(x, w, padding="same"),
        normal((2, 3, 5), (4, 3, 4)),
        lambda t, f, x, w: f.conv1d(f.pad(x, (1, 2)), w),
    ),
    Case("conv1d-single", lambda t, f, x, w: f.conv1d(x, w), normal((3, 5), (4, 3, 1))),
    Case(
        "group-norm",
        lambda t, f, x, w, b: f.group_norm(x, 2, w, b),
        normal((3, 4, 3, 5), (4,), (4,)),
    ),
    Case("group-norm-plain", lambda t, f, x: f.group_norm(x, 3, eps=1e-3), normal((3, 6))),
    Case("max-pool", lambda t, f, x: f.max_pool2d(x, 3, 2, 1), distinct((2, 2, 5, 6))),
    Case("max-pool-plain", lambda t, f, x: f.max_pool2d(x, 2), distinct((1, 2, 5, 6))),
    Case("avg-pool", lambda t, f, x: f.avg_pool2d(x, 3, 2, 1), normal((2, 2, 5, 6))),
    Case("adaptive-pool", lambda t, f, x: f.adaptive_avg_pool2d(x, (2, 3)), normal((1, 2, 5, 7))),
    Case("global-pool", lambda t, f, x: f.adaptive_avg_pool2d(x, 1), normal((1, 2, 5, 7))),
    Case(
        "batch-norm",
        lambda t, f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        normal((3, 4, 3, 5), (4,), (4,)),
    ),
    Case(
        "batch-norm-plain",
        lambda t, f, x: f.batch_norm(x, None, None, training=True),
        normal((5, 4)),
    ),
    Case(
        "layer-norm",
        lambda t, f, x, w, b: f.layer_norm(x, (3, 5), w, b),
        normal((2, 3, 5), (3, 5), (3, 5)),
    ),
    Case("layer-norm-plain", lambda t, f, x: f.layer_norm(x, (5,)), normal((2, 3, 5))),
]
