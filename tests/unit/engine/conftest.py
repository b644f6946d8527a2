"""The op suite: each case is one call that must work for us and, word for word, for torch.

The same cases run as float64 gradcheck, as comparison with torch, on other memory layouts and on
the stand-in for a GPU. `f` is the functional namespace, `t` the module with tensor functions.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


@dataclasses.dataclass(frozen=True)
class Fixed:
    """An input that carries no gradient."""

    array: Any


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    call: Callable[..., Any]
    inputs: Callable[[Any], list[Any]]
    peer: Callable[..., Any] | None = None


def normal(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.normal(size=shape) for shape in shapes]


def positive(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.uniform(0.5, 2.0, size=shape) for shape in shapes]


def distinct(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    """Values far enough apart that a step of a difference changes no order and no sign."""

    def draw(rng: Any) -> list[Any]:
        return [
            ((rng.permutation(int(np.prod(s))) + 0.2 + i / 10) / 7 - np.prod(s) / 14).reshape(s)
            for i, s in enumerate(shapes)
        ]

    return draw


def with_classes(shape: tuple[int, ...], ignore: bool = False) -> Callable[[Any], list[Any]]:
    def draw(rng: Any) -> list[Any]:
        target = rng.integers(0, shape[1], size=(shape[0], *shape[2:]))
        if ignore:
            target.reshape(-1)[0] = -100
        return [rng.normal(size=shape), Fixed(target)]

    return draw


def with_index(shape: tuple[int, ...], index: Any) -> Callable[[Any], list[Any]]:
    return lambda rng: [rng.normal(size=shape), Fixed(np.array(index))]


def with_bits(*shape: int) -> Callable[[Any], list[Any]]:
    return lambda rng: [
        rng.normal(size=shape),
        Fixed(rng.integers(0, 2, size=shape).astype(np.float64)),
    ]


def _peer_dot(t: Any, f: Any, x: Any) -> Any:
    i, j = t.tril_indices(x.shape[1], x.shape[1], -1)
    return t.bmm(x, x.transpose(1, 2))[:, i, j]


def _peer_fm(t: Any, f: Any, x: Any) -> Any:
    return _peer_dot(t, f, x).sum(dim=1, keepdim=True)


def _cross(t: Any, f: Any, x0: Any, x: Any, w: Any, b: Any) -> Any:
    return f.cross_layer(x0, x, w, b)


def _peer_cross(t: Any, f: Any, x0: Any, x: Any, w: Any, b: Any) -> Any:
    return x0 * f.linear(x, w, b) + x


def _summed(name: str) -> Callable[..., Any]:
    return lambda t, f, x, y: getattr(f, name)(x, y, reduction="sum")


NOBODY = np.zeros(0, np.int64)

CASES = [
    Case("add", lambda t, f, a, b: a + b, normal((3, 5), (3, 5))),
    Case("add-broadcast", lambda t, f, a, b: a + b, normal((3, 1, 5), (7, 1))),
    Case("add-scalar", lambda t, f, a: 2 + a + 1.5, normal((7,))),
    Case("add-empty", lambda t, f, a, b: a + b, normal((0, 5), (5,))),
    Case("sub", lambda t, f, a, b: a - b, normal((3, 5), (5,))),
    Case("sub-reversed", lambda t, f, a: 1 - a, normal((3, 5))),
    Case("mul", lambda t, f, a, b: a * b, normal((3, 5), (3, 1))),
    Case("mul-same", lambda t, f, a: a * a * a, normal((3, 5))),
    Case("div", lambda t, f, a, b: a / b, positive((3, 5), (5,))),
    Case("div-reversed", lambda t, f, a: 2 / a, positive((3, 5))),
    Case("pow", lambda t, f, a, b: a**b, positive((3, 5), (5,))),
    Case("pow-scalar", lambda t, f, a: a**3, normal((3, 5))),
    Case("neg", lambda t, f, a: -a, normal((3, 5))),
    Case("maximum", lambda t, f, a, b: t.maximum(a, b), distinct((5, 7), (5, 7))),
    Case("minimum", lambda t, f, a, b: t.minimum(a, b * 1.3), distinct((5, 7), (5, 7))),
    Case(
        "maximum-number",
        lambda t, f, a: t.maximum(a, 0.11),
        distinct((5, 7)),
        lambda t, f, a: a.clamp(min=0.11),
    ),
    Case("where", lambda t, f, a, b: t.where(a > 0, a, b), distinct((5, 7), (7,))),
    Case("exp", lambda t, f, a: a.exp(), normal((3, 5))),
    Case("log", lambda t, f, a: a.log(), positive((3, 5))),
    Case("sqrt", lambda t, f, a: a.sqrt(), positive((3, 5))),
    Case("abs", lambda t, f, a: a.abs(), distinct((3, 5))),
    Case("clamp", lambda t, f, a: a.clamp(-0.5, 0.6), distinct((3, 5))),
    Case("clamp-min", lambda t, f, a: a.clamp(min=0.11), distinct((3, 5))),
    Case("relu", lambda t, f, a: f.relu(a), distinct((3, 5))),
    Case("sigmoid", lambda t, f, a: t.sigmoid(a), normal((3, 5))),
    Case("tanh", lambda t, f, a: t.tanh(a), normal((3, 5))),
    Case("silu", lambda t, f, a: f.silu(a), normal((3, 5))),
    Case("gelu", lambda t, f, a: f.gelu(a), normal((3, 5))),
    Case("gelu-tanh", lambda t, f, a: f.gelu(a, approximate="tanh"), normal((3, 5))),
    Case("softmax", lambda t, f, a: f.softmax(a, dim=1), normal((3, 5, 2))),
    Case("log-softmax", lambda t, f, a: f.log_softmax(a, dim=-1), normal((3, 5))),
    Case("matmul", lambda t, f, a, b: a @ b, normal((3, 5), (5, 7))),
    Case("matmul-vector", lambda t, f, a, b: a @ b, normal((3, 5), (5,))),
    Case("matmul-vectors", lambda t, f, a, b: a @ b, normal((5,), (5,))),
    Case("matmul-left-vector", lambda t, f, a, b: a @ b, normal((5,), (2, 5, 3))),
    Case("matmul-batched", lambda t, f, a, b: a @ b, normal((2, 1, 3, 5), (4, 5, 2))),
    Case("matmul-empty", lambda t, f, a, b: a @ b, normal((0, 5), (5, 3))),
    Case("linear", lambda t, f, x, w, b: f.linear(x, w, b), normal((3, 5), (7, 5), (7,))),
    Case("linear-3d", lambda t, f, x, w, b: f.linear(x, w, b), normal((2, 3, 5), (7, 5), (7,))),
    Case("linear-no-bias", lambda t, f, x, w: f.linear(x, w), normal((3, 5), (1, 5))),
    Case("linear-empty", lambda t, f, x, w, b: f.linear(x, w, b), normal((0, 5), (7, 5), (7,))),
    Case(
        "linear-relu",
        lambda t, f, x, w, b: f.linear_relu(x, w, b),
        normal((9, 5), (7, 5), (7,)),
        lambda t, f, x, w, b: f.relu(f.linear(x, w, b)),
    ),
    Case("reshape", lambda t, f, a: a.reshape(5, -1), normal((3, 5, 2))),
    Case("view", lambda t, f, a: a.view(15, 2), normal((3, 5, 2))),
    Case("flatten", lambda t, f, a: a.flatten(1), normal((3, 5, 2))),
    Case("transpose", lambda t, f, a: a.transpose(0, 2), normal((3, 5, 2))),
    Case("permute", lambda t, f, a: a.permute(2, 0, 1), normal((3, 5, 2))),
    Case("t", lambda t, f, a: a.T, normal((3, 5))),
    Case("squeeze", lambda t, f, a: a.squeeze(1), normal((3, 1, 2))),
    Case("unsqueeze", lambda t, f, a: a.unsqueeze(-1), normal((3, 2))),
    Case("expand", lambda t, f, a: a.expand(4, 3, 2), normal((3, 1))),
    Case("cat", lambda t, f, a, b: t.cat([a, b], dim=1), normal((3, 5), (3, 2))),
    Case("stack", lambda t, f, a, b: t.stack([a, b], dim=1), normal((3, 5), (3, 5))),
    Case("split", lambda t, f, a: a.split([1, 4], 1), normal((3, 5))),
    Case("split-unused", lambda t, f, a: a.split(2, 0)[1], normal((5, 3))),
    Case("index-slice", lambda t, f, a: a[1:, None, ::2], normal((3, 5))),
    Case("index-int", lambda t, f, a: a[1, -1], normal((3, 5))),
    Case("index-repeated", lambda t, f, a: a[[0, 2, 0, 0]], normal((3, 5))),
    Case("index-tensor", lambda t, f, a, i: a[i], with_index((4, 3), [[0, 1], [1, 3]])),
    Case("index-mask", lambda t, f, a: a[a > 0], distinct((3, 5))),
    Case("sum", lambda t, f, a: a.sum(), normal((3, 5))),
    Case("sum-dim", lambda t, f, a: a.sum(dim=1), normal((3, 5, 2))),
    Case("sum-dims", lambda t, f, a: a.sum(dim=(0, -1), keepdim=True), normal((3, 5, 2))),
    Case("sum-empty", lambda t, f, a: a.sum(), normal((0, 5))),
    Case("mean", lambda t, f, a: a.mean(), normal((3, 5))),
    Case("mean-dim", lambda t, f, a: a.mean(dim=0), normal((3, 5))),
    Case("var", lambda t, f, a: a.var(dim=1), normal((3, 5))),
    Case("var-biased", lambda t, f, a: a.var(dim=(0, 1), correction=0), normal((3, 5))),
    Case("max", lambda t, f, a: a.max(), distinct((3, 5))),
    Case(
        "max-dim",
        lambda t, f, a: a.max(dim=1),
        distinct((3, 5)),
        lambda t, f, a: a.max(dim=1).values,
    ),
    Case("min", lambda t, f, a: a.min(), distinct((3, 5))),
    Case("clone", lambda t, f, a: a.clone() * 2, normal((3, 5))),
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
    Case(
        "take-rows",
        lambda t, f, r, i: f.take_rows(r, i),
        with_index((4, 3), [0, 2, 2, 0, 2, 3]),
        lambda t, f, r, i: r[i],
    ),
    Case(
        "take-rows-2d",
        lambda t, f, r, i: f.take_rows(r, i),
        with_index((4, 3), [[0, 2], [2, 0]]),
        lambda t, f, r, i: r[i],
    ),
    Case("cat-empty", lambda t, f, a, b: t.cat([a, b]), normal((0, 5), (2, 5))),
    Case("mse-empty", lambda t, f, a, b: f.mse_loss(a, b, reduction="sum"), normal((0, 2), (0, 2))),
    Case(
        "linear-relu-empty",
        lambda t, f, x, w, b: f.relu(f.linear(x, w, b)),
        normal((0, 5), (7, 5), (7,)),
    ),
    Case(
        "dot-interaction-empty", lambda t, f, x: f.dot_interaction(x), normal((0, 5, 2)), _peer_dot
    ),
    Case(
        "take-rows-empty",
        lambda t, f, r, i: f.take_rows(r, i),
        with_index((4, 3), NOBODY),
        lambda t, f, r, i: r[i],
    ),
    Case("softplus", lambda t, f, x: f.softplus(x), normal((3, 5))),
    Case("leaky-relu", lambda t, f, x: f.leaky_relu(x, 0.1), distinct((3, 5))),
    Case("gather", lambda t, f, x, i: x.gather(1, i), with_index((3, 4), [[0, 0], [3, 1]])),
    Case("masked-fill", lambda t, f, x: x.masked_fill(x > 0, 2.0), distinct((3, 5))),
    Case("chunk", lambda t, f, x: x.chunk(2, 1), normal((3, 5))),
    Case("unbind", lambda t, f, x: x.unbind(1), normal((3, 2))),
    Case("norm", lambda t, f, x: x.norm(), normal((3, 5))),
    Case("log1p", lambda t, f, x: x.log1p(), positive((3, 5))),
    Case("sin", lambda t, f, x: x.sin(), normal((3, 5))),
    Case("cos", lambda t, f, x: x.cos(), normal((3, 5))),
    Case("cumsum", lambda t, f, x: x.cumsum(1), normal((3, 5, 2))),
    Case("logsumexp", lambda t, f, x: (50 * x).logsumexp(-1), normal((3, 5))),
    Case("l1", lambda t, f, a, b: f.l1_loss(a, b), distinct((3, 5), (3, 5))),
    Case("std", lambda t, f, x: x.std(dim=1), normal((3, 5))),
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
    Case(
        "embedding",
        lambda t, f, i, w: f.embedding(i, w),
        lambda rng: [Fixed(np.array([[0, 2], [3, 0]])), rng.normal(size=(4, 3))],
    ),
    *[
        Case(
            f"embedding-bag-{mode}",
            lambda t, f, i, w, mode=mode: f.embedding_bag(i, w, mode=mode),
            lambda rng: [Fixed(np.array([[0, 2, 0], [3, 0, 3]])), *distinct((4, 3))(rng)],
        )
        for mode in ("sum", "mean", "max")
    ],
    *[
        Case(
            f"embedding-bag-ragged-{mode}",
            lambda t, f, i, o, w, mode=mode: f.embedding_bag(i, w, o, mode=mode, padding_idx=1),
            lambda rng: [
                Fixed(np.array([0, 1, 2, 2, 3, 1, 4])),
                Fixed(np.array([0, 0, 3, 5, 6])),
                *distinct((5, 3))(rng),
            ],
        )
        for mode in ("sum", "mean", "max")
    ],
    Case(
        "embedding-bag-weighted",
        lambda t, f, i, o, w, p: f.embedding_bag(
            i, w, o, mode="sum", per_sample_weights=p, include_last_offset=True
        ),
        lambda rng: [
            Fixed(np.array([0, 1, 2, 2, 3])),
            Fixed(np.array([0, 2, 2, 5])),
            rng.normal(size=(5, 3)),
            rng.normal(size=5),
        ],
    ),
    Case("dot-interaction", lambda t, f, x: f.dot_interaction(x), normal((3, 5, 2)), _peer_dot),
    Case("cross-layer", _cross, normal((3, 5), (3, 5), (5, 5), (5,)), _peer_cross),
    Case(
        "factorization-machine",
        lambda t, f, x: f.factorization_machine(x),
        normal((3, 5, 2)),
        _peer_fm,
    ),
]

# Empty batches, for what has no such case above.
CASES += [
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
    Case("fm-empty", lambda t, f, x: f.factorization_machine(x), normal((0, 5, 2)), _peer_fm),
    Case("cross-empty", _cross, normal((0, 5), (0, 5), (5, 5), (5,)), _peer_cross),
    Case("bce-empty", _summed("binary_cross_entropy_with_logits"), with_bits(0, 3)),
    Case("entropy-empty", _summed("cross_entropy"), with_classes((0, 3))),
    Case("nll-empty", _summed("nll_loss"), with_classes((0, 3))),
    Case("embedding-empty", lambda t, f, x, i: f.embedding(i, x), with_index((4, 3), NOBODY)),
    *[
        Case(
            f"embedding-bag-{mode}-empty",
            lambda t, f, x, i, mode=mode: f.embedding_bag(i, x, mode=mode),
            with_index((4, 3), NOBODY.reshape(0, 3)),
        )
        for mode in ("sum", "mean", "max")
    ],
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[c.name for c in CASES])


@pytest.fixture
def arrays(case: Case) -> list[tuple[Any, bool]]:
    """The case's inputs and whether each carries a gradient; the same on every run."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    return [(x.array, False) if isinstance(x, Fixed) else (x, True) for x in case.inputs(rng)]
