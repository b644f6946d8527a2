"""Gradients where a function has no slope, or none that is finite: they are torch's."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd, nn
from gradmesh.engine.autograd import ops

INF, NAN = math.inf, math.nan
OURS = SimpleNamespace(**{**vars(ops), **vars(autograd)})
ROWS = [[0.0, 0.0], [3.0, -4.0], [0.0, 2.0], [2.0, -2.0]]
BASES = [0.0, 0.0, 0.0, 0.0, -2.0, -2.0, -2.0, -2.0, 2.0, INF, -INF, NAN, 1.0, INF]
POWERS = [0.0, 1.0, 2.0, -1.0, 0.0, 2.0, 0.5, -1.0, 0.0, 0.0, 2.0, 0.0, NAN, -1.0]
LEFT, RIGHT = [1.0, 2.0, NAN, 1.0, NAN, INF], [1.0, 1.0, 1.0, NAN, NAN, INF]
X = [0.0, 1.0, 0.5, -1.0, 2.0, NAN, 0.5, 0.5, 3.0, 1.0, 1.0]
LOW = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NAN, 0.0, 3.0, 2.0, 1.0]
HIGH = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, NAN, 2.0, 1.0, 1.0]
EXTREMES = [[INF, 1.0], [-INF, -INF], [INF, -INF], [INF, INF], [-INF, 2.0], [NAN, 1.0]]

CASES: list[tuple[str, Any, list[Any]]] = [
    *[
        (f"norm-{p}-{dim}", lambda t, f, x, p=p, dim=dim: x.norm(p, dim=dim), [ROWS])
        for p in (0.5, 1, 1.5, 2, 3, -1, -2, INF, -INF)
        for dim in (1, 0, None)
    ],
    ("norm-zeros", lambda t, f, x: x.norm(), [[0.0, 0.0]]),
    ("norm-zero-rows", lambda t, f, x: x.norm(dim=1), [[[0.0, 0.0], [0.0, 1.0]]]),
    ("norm-infinite", lambda t, f, x: x.norm(), [[INF, 1.0]]),
    ("std-constant", lambda t, f, x: x.std(), [[1.0, 1.0, 1.0]]),
    ("std-rows", lambda t, f, x: x.std(dim=1), [[[1.0, 1.0], [1.0, 3.0]]]),
    ("std-one", lambda t, f, x: x.std(), [[1.0]]),
    ("var-one", lambda t, f, x: x.var(), [[1.0]]),
    ("var-few", lambda t, f, x: x.var(correction=5), [[1.0, 2.0]]),
    ("std-few", lambda t, f, x: x.std(correction=2), [[1.0, 2.0]]),
    *[
        (f"pow-{y}", lambda t, f, x, y=y: x**y, [[0.0, -1.0, 4.0, INF]])
        for y in (0, 0.0, 1, 2, 0.5, -1, 3, True)
    ],
    ("pow-0-nan", lambda t, f, x: x**0, [[NAN, 0.0]]),
    ("pow-tensors", lambda t, f, x, y: x**y, [BASES, POWERS]),
    ("pow-broadcast", lambda t, f, x, y: x**y, [[[0.0], [2.0]], [0.0, 1.0, 2.0]]),
    *[
        (f"base-{x}", lambda t, f, y, x=x: x**y, [[0.0, 1.0, -1.0, 2.0]])
        for x in (0, 2, -2, 1, 0.5)
    ],
    ("maximum", lambda t, f, x, y: t.maximum(x, y), [LEFT, RIGHT]),
    ("minimum", lambda t, f, x, y: t.minimum(x, y), [LEFT, RIGHT]),
    ("max-ties", lambda t, f, x: x.max(), [[1.0, 3.0, 3.0, 0.0]]),
    ("min-ties", lambda t, f, x: x.min(), [[[1.0, 1.0], [1.0, 2.0]]]),
    ("max-nan", lambda t, f, x: x.max(), [[1.0, NAN, 3.0, NAN]]),
    ("max-dim", lambda t, f, x: x.max(1)[0], [[[1.0, 3.0, 3.0], [NAN, 1.0, NAN]]]),
    ("min-dim", lambda t, f, x: x.min(1)[0], [[[3.0, 1.0, 1.0], [1.0, NAN, NAN]]]),
    ("clamp", lambda t, f, x: x.clamp(0, 1), [X]),
    ("clamp-crossed", lambda t, f, x: x.clamp(3, 2), [X]),
    ("clamp-tensors", lambda t, f, x, a, b: x.clamp(a, b), [X, LOW, HIGH]),
    ("clamp-low", lambda t, f, x, a: x.clamp(min=a), [X, LOW]),
    ("clamp-high", lambda t, f, x, b: x.clamp(max=b), [X, HIGH]),
    ("clamp-broadcast", lambda t, f, x, a: x.clamp(min=a), [[[1.0, 2.0]], [[0.0], [1.5]]]),
    ("abs", lambda t, f, x: x.abs(), [[0.0, -0.0, -1.0, INF]]),
    ("relu", lambda t, f, x: f.relu(x), [[0.0, -0.0, -1.0, INF]]),
    ("leaky-relu", lambda t, f, x: f.leaky_relu(x, 0.1), [[0.0, -0.0, -1.0, INF, NAN]]),
    ("sqrt", lambda t, f, x: x.sqrt(), [[0.0, 4.0, -1.0]]),
    ("rsqrt", lambda t, f, x: x.rsqrt(), [[0.0, 4.0, -1.0]]),
    ("reciprocal", lambda t, f, x: x.reciprocal(), [[0.0, 4.0, INF]]),
    ("log", lambda t, f, x: x.log(), [[0.0, -1.0, INF]]),
    ("log1p", lambda t, f, x: x.log1p(), [[-1.0, -2.0, INF]]),
    ("div", lambda t, f, x, y: x / y, [[0.0, 1.0, 1.0], [0.0, 0.0, INF]]),
    ("l1", lambda t, f, x, y: f.l1_loss(x, y), [[0.0, 1.0, 2.0], [0.0, 0.0, 3.0]]),
    ("sigmoid", lambda t, f, x: x.sigmoid(), [[-1000.0, 1000.0, INF, -INF, NAN]]),
    ("tanh", lambda t, f, x: x.tanh(), [[INF, -INF]]),
    ("softplus", lambda t, f, x: f.softplus(x), [[INF, -INF, -1000.0, 1000.0]]),
    ("softmax", lambda t, f, x: x.softmax(1), [EXTREMES]),
    ("log-softmax", lambda t, f, x: x.log_softmax(1), [EXTREMES]),
    ("logsumexp", lambda t, f, x: x.logsumexp(1), [EXTREMES]),
    ("logsumexp-all", lambda t, f, x: x.logsumexp((0, 1)), [EXTREMES[4:5]]),
    (
        "where",
        lambda t, f, x, y: t.where(t.tensor([True, False]), x, y),
        [[INF, 1.0], [2.0, NAN]],
    ),
    ("cumsum", lambda t, f, x: x.cumsum(0), [[INF, 1.0]]),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("call", "given"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_gradients_without_a_slope_equal_torch(call: Any, given: Any) -> None:
    torch = pytest.importorskip("torch")
    mine = [autograd.tensor(np.array(x), requires_grad=True) for x in given]
    theirs = [torch.tensor(np.array(x), requires_grad=True) for x in given]

    with np.errstate(all="ignore"):
        found = call(OURS, nn.functional, *mine)
        seed = np.arange(1.0, found.numel() + 1).reshape(found.shape)
        found.backward(seed)
    expected = call(torch, torch.nn.functional, *theirs)
    expected.backward(torch.tensor(seed))

    np.testing.assert_allclose(found.data, expected.detach().numpy(), rtol=1e-12)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.data, b.grad.numpy(), rtol=1e-12)


def test_a_constant_has_no_warnings() -> None:
    x = autograd.zeros(2, 3, requires_grad=True)

    total = x.norm() + x.norm(dim=1).sum() + x.std() + x.std(dim=1).sum() + (x**0).sum()
    (total + (x ** autograd.zeros(3)).sum() + (0**x).sum() + x[:, :1].var(dim=1).sum()).backward()

    assert np.isnan(x.grad.data[:, 0]).all()  # one sample has no variance
    assert x.grad.data[:, 1:].tolist() == [[0, 0], [0, 0]]


def test_the_norm_of_a_count_has_no_gradient() -> None:
    x = autograd.tensor([[0.0, 2.0], [3.0, 4.0]], requires_grad=True)

    found = x.norm(0, dim=1)
    found.sum().backward()

    assert found.tolist() == [1, 2]
    assert x.grad.tolist() == [[0, 0], [0, 0]]
