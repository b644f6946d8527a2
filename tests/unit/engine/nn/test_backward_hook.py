from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn


class Two(nn.Module):
    def forward(self, a: Any, scale: float, b: Any) -> Any:
        return a * scale, a + b


def test_hook_sees_the_gradients_of_arguments_and_results() -> None:
    module = Two()
    seen: list[Any] = []
    module.register_full_backward_hook(lambda *got: seen.append(got))
    a, b = ag.ones(2, requires_grad=True), ag.ones(2, requires_grad=True)

    first, second = module(a, 3.0, b)
    (first.sum() + (second * 2).sum()).backward()

    ((owner, given, results),) = seen
    assert owner is module
    assert [g.tolist() for g in given] == [[5.0, 5.0], [2.0, 2.0]]
    assert [g.tolist() for g in results] == [[1.0, 1.0], [2.0, 2.0]]
    assert a.grad.tolist() == [5.0, 5.0]


def test_hook_may_replace_the_gradient_and_can_be_removed() -> None:
    layer = nn.Linear(3, 2)
    x = ag.ones(4, 3, requires_grad=True)
    handle = layer.register_full_backward_hook(lambda module, given, results: (given[0] * 0,))

    layer(x).sum().backward()
    assert (x.grad.data == 0).all()
    assert (layer.bias.grad.data == 4).all()

    handle.remove()
    layer(x).sum().backward()
    assert (x.grad.data != 0).any()


def test_hook_runs_where_no_argument_has_a_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    seen: list[Any] = []
    model[0].register_full_backward_hook(lambda module, given, results: seen.append(results))

    model(ag.ones(4, 3)).sum().backward()

    assert seen[0][0].shape == (4, 2)


def test_a_watched_result_cannot_be_changed_in_place() -> None:
    layer = nn.Linear(3, 2)
    layer.register_full_backward_hook(lambda *got: None)

    with pytest.raises(ag.InplaceError, match="view"):
        layer(ag.ones(4, 3)).mul_(2.0)


def test_hooks_follow_torch() -> None:
    torch = pytest.importorskip("torch")
    mine, peer = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    peer.load_state_dict({k: torch.tensor(v.data.copy()) for k, v in mine.state_dict().items()})
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    a, b = ag.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    for layer in (mine, peer):
        layer.register_full_backward_hook(
            lambda module, given, results: (given[0] * results[0].sum(),)
        )

    (mine(a) ** 2).sum().backward()
    (peer(b) ** 2).sum().backward()

    np.testing.assert_allclose(a.grad.data, b.grad.numpy(), rtol=1e-5)
