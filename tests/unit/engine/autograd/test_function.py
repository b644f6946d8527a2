from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag


class Cube(ag.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return scale * x**3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * ctx.scale * x**2, None


class Halves(ag.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x[:1] * 2, x[1:] * 3

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        first = np.zeros(1) if first is None else first
        second = np.zeros(1) if second is None else second
        return np.concatenate([first * 2, second * 3])


def test_custom_function_is_differentiable() -> None:
    x = ag.tensor([1.0, 2.0], dtype="float64", requires_grad=True)

    assert ag.gradcheck(lambda t: Cube.apply(t, 2.0), [x])


def test_function_with_several_results() -> None:
    x = ag.tensor([1.0, 2.0], dtype="float64", requires_grad=True)

    a, b = Halves.apply(x)
    (a + b * b).sum().backward()

    assert x.grad.tolist() == [2.0, 36.0]


def test_function_with_one_result_in_a_tuple() -> None:
    class Double(ag.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return (x * 2,)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    x = ag.tensor([1.0, 2.0], requires_grad=True)

    (doubled,) = Double.apply(x)
    (doubled * doubled).sum().backward()

    assert x.grad.tolist() == [8.0, 16.0]


def test_wrong_number_of_gradients_is_named() -> None:
    class Bad(ag.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x + y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    x = ag.tensor([1.0], requires_grad=True)

    with pytest.raises(ag.GradientError, match="Bad: backward returned 1 gradients for 2 inputs"):
        Bad.apply(x, x).backward()


def test_function_without_backward_says_so() -> None:
    class Forward(ag.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x + 1

    x = ag.tensor([1.0], requires_grad=True)

    with pytest.raises(TypeError, match="Forward has no backward"):
        Forward.apply(x).backward()


def test_no_graph_is_recorded_without_a_gradient() -> None:
    x = ag.tensor([1.0], requires_grad=True)

    assert (ag.tensor([1.0]) + 1).grad_fn is None
    with ag.no_grad():
        assert (x + 1).grad_fn is None
        with ag.enable_grad():
            assert (x + 1).requires_grad
    assert (x + 1).requires_grad


def test_gradcheck_finds_a_wrong_gradient() -> None:
    class Wrong(ag.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 3 * grad

    x = ag.tensor([1.0], dtype="float64", requires_grad=True)

    with pytest.raises(ag.GradientError, match="off by"):
        ag.gradcheck(Wrong.apply, [x])


def test_an_array_that_a_node_keeps_is_not_handed_out_as_gradient() -> None:
    class Keeps(ag.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.slope = np.ones_like(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return ctx.slope

    x = ag.tensor([1.0, 2.0], requires_grad=True)
    y = Keeps.apply(x)

    y.sum().backward()
    x.grad.data[...] = 7

    assert y.grad_fn.slope.tolist() == [1.0, 1.0]


def test_an_unshared_gradient_is_stored_without_a_copy() -> None:
    places: list[int] = []

    class Fresh(ag.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x + y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            fresh = grad * 2
            places.append(fresh.ctypes.data)
            return fresh, grad

    x, y = ag.ones(3, requires_grad=True), ag.ones(3, requires_grad=True)
    seed = np.ones(3, np.float32)

    Fresh.apply(x, y).backward(seed)

    assert x.grad.data.ctypes.data == places[0]
    assert not np.shares_memory(y.grad.data, seed)
