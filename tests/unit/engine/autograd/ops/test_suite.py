from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd, nn
from gradmesh.engine.autograd import ops

OURS = SimpleNamespace(**{**vars(ops), **vars(autograd)})


def ours(arrays: Any, dtype: str, order: str = "C") -> list[Any]:
    made = []
    for array, has_grad in arrays:
        if array.dtype.kind == "f":
            array = array.astype(dtype)
        tensor = autograd.tensor(np.asarray(array, order=order))
        made.append(tensor.requires_grad_(has_grad))
    return made


def results(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def backward(outs: tuple[Any, ...], seeds: list[Any]) -> None:
    for out, seed in zip(outs, seeds, strict=True):
        out.backward(seed, retain_graph=True)


def test_gradients_match_differences(case: Any, arrays: Any) -> None:
    inputs = ours(arrays, "float64")

    assert autograd.gradcheck(lambda *xs: case.call(OURS, nn.functional, *xs), inputs)


def test_memory_layout_does_not_matter(case: Any, arrays: Any) -> None:
    plain, other = ours(arrays, "float64"), ours(arrays, "float64", order="F")
    for x in other:
        if x.ndim:
            wide = np.repeat(x.data, 2, axis=-1)
            x.data = wide[..., ::2]

    first = results(case.call(OURS, nn.functional, *plain))
    second = results(case.call(OURS, nn.functional, *other))
    seeds = [np.ones(out.shape) for out in first]
    backward(first, seeds)
    backward(second, seeds)

    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-12, atol=1e-12)
    for a, b in zip(plain, other, strict=True):
        if a.requires_grad:
            np.testing.assert_allclose(a.grad.data, b.grad.data, rtol=1e-12, atol=1e-12)


def test_two_runs_give_the_same_bits(case: Any, arrays: Any) -> None:
    bits = []
    for _ in range(2):
        inputs = ours(arrays, "float32")
        outs = results(case.call(OURS, nn.functional, *inputs))
        backward(outs, [np.ones(out.shape, np.float32) for out in outs])
        bits.append([x.grad.data.tobytes() for x in inputs if x.requires_grad])

    assert bits[0] == bits[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value_and_gradients_equal_torch(
    case: Any, arrays: Any, dtype: str, assert_parity: Any
) -> None:
    torch = pytest.importorskip("torch")
    mine = ours(arrays, dtype)
    theirs = [
        torch.tensor(a.astype(dtype) if a.dtype.kind == "f" else a).requires_grad_(g)
        for a, g in arrays
    ]

    found = results(case.call(OURS, nn.functional, *mine))
    expected = results((case.peer or case.call)(torch, torch.nn.functional, *theirs))
    rng = np.random.default_rng(1)
    for a, b in zip(found, expected, strict=True):
        seed = rng.normal(size=a.shape).astype(dtype)
        assert_parity(a.data, b)
        a.backward(seed, retain_graph=True)
        b.backward(torch.tensor(seed), retain_graph=True)

    for a, b in zip(mine, theirs, strict=True):
        if b.requires_grad:
            assert_parity(a.grad.data, b.grad)
