"""Torch's named methods: each has torch's value and gradient; wrong arguments are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import gradcheck
from gradmesh.engine.backend import ShapeError

PLACES = np.array([2, 0, 2])

# A call, and the shapes of its operands.
CALLS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "add": (lambda place, a, b: a.add(b, alpha=3), [(3, 5), (5,)]),
    "sub": (lambda place, a, b: a.sub(b, alpha=2), [(3, 5), (3, 5)]),
    "mul": (lambda place, a, b: a.mul(b), [(3, 5), (3, 1)]),
    "div": (lambda place, a, b: a.div(b), [(3, 5), (5,)]),
    "neg": (lambda place, a: a.neg(), [(3, 5)]),
    "square": (lambda place, a: a.square(), [(3, 5)]),
    "reciprocal": (lambda place, a: a.reciprocal(), [(3, 5)]),
    "rsqrt": (lambda place, a: a.rsqrt(), [(3, 5)]),
    "mm": (lambda place, a, b: a.mm(b), [(3, 5), (5, 2)]),
    "bmm": (lambda place, a, b: a.bmm(b), [(2, 3, 5), (2, 5, 4)]),
    "dot": (lambda place, a, b: a.dot(b), [(5,), (5,)]),
    "t": (lambda place, a: a.t() @ a, [(3, 5)]),
    "index_select": (lambda place, a: a.index_select(1, place), [(2, 3, 2)]),
    "narrow": (lambda place, a: a.narrow(-1, 1, 3), [(3, 5)]),
    "logsumexp-kept": (lambda place, a: a.logsumexp(0, keepdim=True), [(3, 5)]),
}


def _operands(shapes: list[tuple[int, ...]]) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.uniform(0.5, 2.0, size=shape) for shape in shapes]


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_those_of_differences(name: str) -> None:
    call, shapes = CALLS[name]
    tensors = [gm.tensor(x, requires_grad=True) for x in _operands(shapes)]
    assert gradcheck(lambda *given: call(gm.tensor(PLACES), *given), tensors)


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_equal_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    call, shapes = CALLS[name]
    ours = [gm.tensor(x, requires_grad=True) for x in _operands(shapes)]
    peers = [torch.tensor(x, requires_grad=True) for x in _operands(shapes)]

    out, expected = call(gm.tensor(PLACES), *ours), call(torch.tensor(PLACES), *peers)
    (out * out).sum().backward()
    (expected * expected).sum().backward()

    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    for mine, peer in zip(ours, peers, strict=True):
        np.testing.assert_allclose(mine.grad.numpy(), peer.grad.numpy(), rtol=1e-11)


def test_comparisons_and_casts_equal_torch() -> None:
    x = gm.tensor([1.0, 2.0, float("inf")])

    assert x.eq(2).tolist() == [False, True, False]
    assert x.ne(2).tolist() == [True, False, True]
    assert (x.lt(2).tolist(), x.le(2).tolist()) == ([True, False, False], [True, True, False])
    assert (x.gt(2).tolist(), x.ge(2).tolist()) == ([False, False, True], [False, True, True])
    assert (x.isinf().tolist(), x.isfinite().tolist()) == (
        [False, False, True],
        [True, True, False],
    )
    assert [x.half().dtype, x.bfloat16().dtype] == [gm.float16, gm.bfloat16]
    assert x[:2].int().dtype == "int32"
    assert gm.tensor([0, 3]).bool().tolist() == [False, True]


@pytest.mark.parametrize(
    "call",
    [
        lambda: gm.randn(3).mm(gm.randn(3, 2)),
        lambda: gm.randn(2, 3).bmm(gm.randn(3, 2)),
        lambda: gm.randn(2, 3).dot(gm.randn(3)),
        lambda: gm.randn(2, 3, 4).t(),
    ],
)
def test_wrong_numbers_of_axes_are_named(call: Any) -> None:
    with pytest.raises(ShapeError, match=r"^(mm|bmm|dot|t): "):
        call()


def test_narrow_stays_inside() -> None:
    with pytest.raises(
        IndexError, match="narrow: start 3 and length 4 do not fit an axis of length 5"
    ):
        gm.randn(5).narrow(0, 3, 4)
