"""The scope of a backward pass: callbacks at its end, and its gradient map."""

import threading

import numpy as np
import pytest

from gradmesh.engine.autograd import (
    BackwardScope,
    Function,
    GradientError,
    Tensor,
    gradient_map,
    queue_callback,
    run_backward,
)


def leaf() -> Tensor:
    return Tensor(np.ones(3, np.float32), requires_grad=True)


def test_callbacks_run_in_order_before_backward_returns() -> None:
    x, seen = leaf(), []

    def hook(_: Tensor) -> None:
        queue_callback(lambda: (seen.append("first"), queue_callback(lambda: seen.append("last"))))
        queue_callback(lambda: seen.append("second"))
        seen.append("hook")

    x.register_post_accumulate_grad_hook(hook)

    (x * x).sum().backward()

    assert seen == ["hook", "first", "second", "last"]


def test_a_failed_pass_drops_its_callbacks() -> None:
    x, seen = leaf(), []

    class Fails(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            queue_callback(lambda: seen.append("never"))
            raise ValueError("no gradient today")

    with pytest.raises(ValueError, match="no gradient today"):
        Fails.apply(x).sum().backward()
    (x * 2).sum().backward()

    assert seen == []
    assert gradient_map() is None


def test_outside_a_pass_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(GradientError, match="no backward pass"):
        queue_callback(lambda: None)
    assert gradient_map() is None


def test_hooks_see_the_map_of_their_pass() -> None:
    x, seen, into = leaf(), [], {}
    x.register_post_accumulate_grad_hook(lambda _: seen.append(gradient_map()))

    (x * 2).sum().backward()
    run_backward([(x * 2).sum()], into=into)

    assert seen[0] is None
    assert seen[1] is into


def test_a_nested_pass_leaves_its_callbacks_to_the_outer_one() -> None:
    x, y, seen, inner_map = leaf(), leaf(), [], {}

    class Nested(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            run_backward([(y * 2).sum()], into=inner_map)
            seen.append("inner pass over")
            return grad

    def hook(_: Tensor) -> None:
        assert gradient_map() is inner_map
        queue_callback(lambda: seen.append(gradient_map()))

    y.register_post_accumulate_grad_hook(hook)

    Nested.apply(x).sum().backward()

    assert seen == ["inner pass over", None]


def test_a_scope_gathers_the_callbacks_of_passes_on_several_threads() -> None:
    into: dict = {}
    scope = BackwardScope(into)
    seen = []
    leaves = [leaf() for _ in range(3)]

    def piece(x: Tensor) -> None:
        x.register_post_accumulate_grad_hook(
            lambda _: queue_callback(lambda: seen.append(gradient_map() is into))
        )
        with scope:
            run_backward([(x * 2).sum()], into=into)

    threads = [threading.Thread(target=piece, args=(x,)) for x in leaves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == []
    scope.finish()

    assert seen == [True] * 3
    assert set(into) == set(leaves)
