from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine.backend import ShapeError


def leaf(*values: float) -> ag.Tensor:
    return ag.tensor(list(values), requires_grad=True)


def test_gradients_of_repeated_use_add_up() -> None:
    x = leaf(1.0, 2.0)

    (x * x + x * 3 + x).sum().backward()

    assert x.grad.tolist() == [6.0, 8.0]


def test_a_second_backward_adds_to_grad_in_place() -> None:
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    held = x.grad.data

    (x * 3).sum().backward()

    assert x.grad.data is held
    assert held.tolist() == [5.0, 5.0]


def test_two_leaves_never_share_gradient_memory() -> None:
    x, y = leaf(1.0), leaf(2.0)

    (x + y).sum().backward()
    x.grad.data[...] = 7

    assert y.grad.tolist() == [1.0]


def test_into_captures_gradients_and_leaves_grad_alone() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    into: dict[Any, Any] = {}

    ag.run_backward([(x * y).sum()], into=into)
    ag.run_backward([(x * 2).sum()], into=into)

    assert x.grad is None
    assert into[x].tolist() == [5.0, 6.0]
    assert into[y].tolist() == [1.0, 2.0]


def test_several_roots_run_in_one_pass() -> None:
    x = leaf(1.0, 2.0)
    calls: list[int] = []
    x.register_post_accumulate_grad_hook(lambda p: calls.append(1))

    ag.run_backward([x * 2, x * 3], [np.ones(2, np.float32), np.ones(2, np.float32)])

    assert x.grad.tolist() == [5.0, 5.0]
    assert calls == [1]


def test_a_root_may_be_a_leaf() -> None:
    x = leaf(1.0)

    x.backward()

    assert x.grad.tolist() == [1.0]


def test_second_backward_of_a_used_graph_is_named() -> None:
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    y.backward()

    with pytest.raises(ag.GraphReleased, match=r"Mul .*retain_graph=True"):
        y.backward()


def test_retain_graph_allows_a_second_backward() -> None:
    x = leaf(1.0, 2.0)
    y = (x * x).sum()

    y.backward(retain_graph=True)
    y.backward()

    assert x.grad.tolist() == [4.0, 8.0]


def test_hook_may_change_the_gradient() -> None:
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)

    y.sum().backward()

    assert x.grad.tolist() == [21.0]


def test_removed_hook_is_not_called() -> None:
    x = leaf(1.0)
    handle = x.register_hook(lambda g: g * 10)

    handle.remove()
    handle.remove()
    (x * 2).sum().backward()

    assert x.grad.tolist() == [2.0]


def test_post_accumulate_hook_runs_once_with_the_complete_gradient() -> None:
    x = leaf(1.0)
    seen: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))

    (x * 2 + x * 3).sum().backward()

    assert seen == [[5.0]]


def test_leaf_is_finished_before_earlier_layers_run() -> None:
    first, last = leaf(1.0), leaf(2.0)
    order: list[str] = []
    first.register_post_accumulate_grad_hook(lambda p: order.append("first"))
    last.register_post_accumulate_grad_hook(lambda p: order.append("last"))

    ((first * 2) * last).sum().backward()

    assert order == ["last", "first"]


def test_retain_grad_keeps_the_gradient_of_a_result() -> None:
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()

    (y * 3).sum().backward()

    assert y.grad.tolist() == [3.0]


def test_reachable_nodes_come_in_the_order_they_run() -> None:
    x = leaf(1.0)
    y = (x * 2).exp().sum()

    assert [n.name() for n in ag.reachable_nodes([y])] == ["Sum", "Exp", "Mul"]


def test_grad_returns_gradients_of_leaves_and_results() -> None:
    x, z = leaf(1.0), leaf(2.0)
    y = x * 2

    found = ag.grad((y * y).sum(), [x, y, z])

    assert [None if g is None else g.tolist() for g in found] == [[8.0], [4.0], None]
    assert x.grad is None


def test_backward_without_gradient_needs_one_element() -> None:
    with pytest.raises(ag.GradientError, match=r"shape \(2,\)"):
        (leaf(1.0, 2.0) * 2).backward()


def test_backward_of_a_constant_is_refused() -> None:
    with pytest.raises(ag.GradientError, match="no gradient"):
        ag.tensor([1.0]).backward()


def test_gradient_of_wrong_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match="\\(3,\\)"):
        (leaf(1.0, 2.0) * 2).backward(np.ones(3, np.float32))


def test_grad_buffer_receives_the_first_gradient() -> None:
    x = leaf(1.0, 2.0)
    bucket = np.zeros(5, np.float32)
    x.grad_buffer = bucket[1:3]

    (x * 3).sum().backward()

    assert bucket.tolist() == [0, 3, 3, 0, 0]
    assert np.shares_memory(x.grad.data, bucket)


def test_anomaly_mode_names_the_op_that_made_nan() -> None:
    x = ag.tensor([-1.0], requires_grad=True)
    with ag.detect_anomaly(), np.errstate(all="ignore"):
        with pytest.raises(ag.AnomalyError, match="forward of Sqrt"):
            x.sqrt()
        zero = ag.tensor([0.0], requires_grad=True)
        y = zero.sqrt() * 0
        with pytest.raises(ag.AnomalyError, match="backward of Sqrt"):
            y.sum().backward()


def test_scalar_leaf_gets_a_gradient_of_its_shape() -> None:
    x = ag.tensor(2.0, requires_grad=True)

    (x * x + x * 3 + x).backward()
    (x * x).backward()

    assert x.grad.shape == ()
    assert x.grad.item() == 12.0
    assert isinstance(x.grad.data, np.ndarray)


def test_a_split_into_one_piece_passes_its_gradient_on():
    x = ag.Tensor(np.ones((2, 3)), requires_grad=True)

    (piece,) = x.split([3], 1)
    (piece * 2).sum().backward()

    np.testing.assert_array_equal(x.grad.data, np.full((2, 3), 2.0))


def test_passes_of_several_threads_share_leaves_and_stay_apart() -> None:
    weight = ag.randn(16, 16, requires_grad=True)

    def work(number: int) -> list[Any]:
        found = []
        for _ in range(20):
            into: dict[Any, Any] = {}
            out = (weight * number).exp().sum()
            ag.run_backward([out], into=into)
            found.append(into[weight])
        return found

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, [1, 2, 3, 4]))

    assert weight.grad is None
    for number, found in enumerate(results, start=1):
        expected = number * np.exp(weight.data * np.float32(number))
        for grad in found:
            np.testing.assert_allclose(grad, expected, rtol=1e-5)


def test_no_grad_belongs_to_its_thread() -> None:
    x = leaf(1.0)

    with ag.no_grad(), ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: (x * 2).requires_grad).result()
        own = (x * 2).requires_grad

    assert (own, other) == (False, True)
