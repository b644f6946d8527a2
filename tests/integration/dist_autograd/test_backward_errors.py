"""Errors and hooks of backwards over four workers, named as in upstream."""

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.errors import BackwardFailed, ContextReleased
from tests.integration.dist_autograd import functions as f
from tests.integration.dist_autograd.compare import call, check_same

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]


def test_backward_autograd_engine_error(world):
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        gm.rpc_sync("worker0", f.set_failing, (True,))
        y = gm.rpc_sync("worker1", f.failing_chain, (x, ["worker2", "worker3"]))
        with pytest.raises(
            BackwardFailed, match=r"on worker3: ValueError: simulated error"
        ) as info:
            gm.autograd.backward(ctx, [y.sum()])

        assert info.value.metadata["worker"] == "worker3"
        assert ctx.gradients() == {}


def test_multiple_backward_with_errors(world):
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        y = gm.rpc_sync("worker1", f.failing_chain, (x, ["worker2"])).sum()
        gm.rpc_sync("worker2", f.set_failing, (True,))
        for _ in range(50):
            with pytest.raises(BackwardFailed, match="worker2"):
                gm.autograd.backward(ctx, [y], retain_graph=True)
        gm.rpc_sync("worker2", f.set_failing, (False,))
        for _ in range(3):
            gm.autograd.backward(ctx, [y], retain_graph=True)

        np.testing.assert_array_equal(ctx.gradients()[x], np.full((3, 3), 18.0))


def test_clean_context_during_backward(world):
    x = f.tensor(3, 3)
    gm.rpc_sync("worker2", f.set_in_backward, ("release",))

    with gm.autograd.context() as ctx:
        y = gm.rpc_sync("worker1", f.hooked_chain, (x, ["worker2"])).sum()
        with pytest.raises(ContextReleased):
            gm.autograd.backward(ctx, [y], timeout_s=20)

    gm.rpc_sync("worker2", f.set_in_backward, (None,))
    assert gm.rpc_sync("worker1", f.train_here, ("worker2", 2)) == 2


def test_backward_verify_hooks(world):
    x = gm.tensor(np.ones((3, 3), np.float32), requires_grad=True)
    x.register_hook(lambda grad: grad * 2)
    y = f.tensor(3, 3)

    check_same(lambda kind, to: call(kind, to, f.mul, x, y).sum(), [x, y], "smart")
    check_same(lambda kind, to: call(kind, to, f.mul, x, y).sum(), [x, y], "fast")


def test_post_hooks(world):
    x, seen = f.tensor(3), []
    for number in range(3):
        x.register_post_accumulate_grad_hook(lambda leaf, n=number: seen.append(n))

    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [gm.rpc_sync("worker1", f.mul, (x, x)).sum()])

    assert seen == [0, 1, 2]
