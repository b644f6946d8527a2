"""Weight and bias of other dtypes than the input: refused where torch refuses, else typed as there.

A gradient has the dtype of its leaf; other workers refuse one that has not.
"""

import itertools
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.backend import DtypeError

SHAPES = {
    "linear": ((2, 3), (4, 3), (4,)),
    "conv1d": ((2, 3, 5), (4, 3, 2), (4,)),
    "conv2d": ((2, 3, 5, 5), (4, 3, 2, 2), (4,)),
    "layer_norm": ((2, 3), (3,), (3,)),
    "group_norm": ((2, 4, 3), (4,), (4,)),
    "batch_norm": ((4, 3), (3,), (3,)),
}
CASES = [*itertools.product(("float32", "float64"), repeat=3)]
# What is half beside float32 is for the two that torch computes so.
HALF = [(half, "float32", "float32") for half in ("float16", "bfloat16")]
MIXED = [*((name, kinds) for name in SHAPES for kinds in CASES)] + [
    (name, kinds) for name in ("layer_norm", "batch_norm") for kinds in HALF
]


def run(functional: Any, name: str, tensors: list[Any]) -> list[str]:
    x, weight, bias = tensors
    if name == "layer_norm":
        out = functional.layer_norm(x, (3,), weight, bias)
    elif name == "group_norm":
        out = functional.group_norm(x, 2, weight, bias)
    elif name == "batch_norm":
        out = functional.batch_norm(x, None, None, weight, bias, True)
    else:
        out = getattr(functional, name)(x, weight, bias)
    out.sum().backward()
    return [str(t.dtype).removeprefix("torch.") for t in (out, *(t.grad for t in tensors))]


@pytest.mark.parametrize(("name", "kinds"), MIXED)
def test_parameters_of_other_dtypes(name: str, kinds: tuple[str, ...]) -> None:
    torch = pytest.importorskip("torch")
    arrays = [np.random.default_rng(0).random(shape) for shape in SHAPES[name]]
    theirs = [
        torch.tensor(array, dtype=getattr(torch, kind)).requires_grad_()
        for array, kind in zip(arrays, kinds, strict=True)
    ]
    ours = [
        gm.tensor(array).to(kind).detach().requires_grad_()
        for array, kind in zip(arrays, kinds, strict=True)
    ]
    try:
        wanted = run(torch.nn.functional, name, theirs)
    except RuntimeError:
        with pytest.raises(DtypeError, match=r"input is .*; cast one of them"):
            run(gm.nn.functional, name, ours)
    else:
        assert run(gm.nn.functional, name, ours) == wanted == [kinds[0], *kinds]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_layer_norm_beside_float32_parameters(kind: str) -> None:
    rng = np.random.default_rng(1)
    half = gm.tensor(rng.random((5, 8))).to(kind).detach().requires_grad_()
    full = half.detach().float().requires_grad_()
    grads = []
    for x in (half, full):
        weight, bias = (
            gm.tensor(np.linspace(0.5, 2, 8).astype(np.float32), requires_grad=True)
            for _ in range(2)
        )
        out = gm.nn.functional.layer_norm(x, (8,), weight, bias)
        (out * out).sum().backward()
        grads.append([np.asarray(t.grad.data, np.float32) for t in (x, weight, bias)])

    for found, wanted in zip(*grads, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.1 * np.abs(wanted).max())
