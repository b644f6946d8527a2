import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim
from gradmesh.engine.backend.dtype import as_dtype

HALVES = ["float16", "bfloat16"]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_model_of_half_precision_trains(dtype: str) -> None:
    nn_kwargs = {"dtype": dtype}
    model = nn.Sequential(
        nn.Linear(4, 8, **nn_kwargs),
        nn.ReLU(),
        nn.LayerNorm(8, **nn_kwargs),
        nn.Linear(8, 3, **nn_kwargs),
    )
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    x, y = ag.randn(5, 4, dtype=dtype), ag.tensor([0, 1, 2, 0, 1])
    losses = []

    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))

    assert losses[-1] < losses[0] / 2
    assert model[0].weight.dtype == as_dtype(dtype)
    assert optimizer.state[model[0].weight]["slots"]["exp_avg"].dtype == np.float32


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_half_precision_agree_with_float32(dtype: str, mode: str) -> None:
    half = nn.EmbeddingBag(10, 4, mode=mode, dtype=dtype, sparse=True)
    full = nn.EmbeddingBag(10, 4, mode=mode, sparse=True)
    full.load_state_dict(half.state_dict())
    ids = ag.tensor([[1, 2, 1], [3, 1, 9]])

    for layer in (half, full):
        layer(ids).sum().backward()
        optim.RowwiseAdagrad(layer.parameters(), lr=0.1).step()

    assert half.weight.grad.dtype == as_dtype(dtype)
    np.testing.assert_allclose(
        half.weight.data.astype(np.float32), full.weight.data, rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_ops_keep_half_precision(dtype: str) -> None:
    x = ag.randn(2, 3, dtype=dtype, requires_grad=True)
    f = nn.functional

    outs = [
        x * 2.5,
        x.sigmoid(),
        f.gelu(x),
        f.silu(x),
        f.softmax(x),
        x.mean(),
        x @ x.T,
        f.softplus(x),
    ]
    sum((out.sum() for out in outs), start=ag.zeros((), dtype=dtype)).backward()

    assert [out.dtype for out in outs] == [as_dtype(dtype)] * len(outs)
    assert x.grad.dtype == as_dtype(dtype)
