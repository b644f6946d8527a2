"""Backward over four workers; names as in upstream's dist_autograd_test where it has them."""

import threading
import time

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import GradientError
from gradmesh.protos.errors import ContextReleased, GradientMissing
from tests.integration.dist_autograd import functions as f
from tests.integration.dist_autograd.compare import call, check_same, local_gradients

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]

MODES = pytest.mark.parametrize("mode", ["smart", "fast"])


@MODES
def test_backward_simple(world, mode):
    x, y, z = f.tensor(3, 3), f.tensor(3, 3), f.tensor(3, 3)

    check_same(lambda kind, to: (call(kind, to, f.add, x, y) * z).sum(), [x, y, z], mode)


@MODES
def test_backward_simple_self(world, mode):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    check_same(lambda kind, to: call(kind, to, f.mul, x, y).sum(), [x, y], mode, to="worker0")


def test_backward_no_grad_on_tensor(world):
    x, y = f.tensor(3, 3), f.tensor(3, 3)
    y.grad = gm.tensor(np.full((3, 3), 7.0, np.float32))

    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [gm.rpc_sync("worker1", f.add, (x, y)).sum()], retain_graph=True)
        assert set(gm.autograd.get_gradients(ctx)) == {x, y}

    assert x.grad is None
    assert (y.grad.data == 7).all()


@MODES
def test_backward_multiple_round_trips(world, mode):
    tensors = [f.tensor(3, 3) for _ in range(5)]

    def loss(kind, to):
        a = call(kind, to, f.add, tensors[0], tensors[1])
        b = call(kind, "worker2", f.mul, a, tensors[2])
        c = call(kind, to, f.mul, b, tensors[3])
        return (c * tensors[4]).sum()

    check_same(loss, tensors, mode)


def test_backward_different_tensor_dims(world):
    a, b, c, d = f.tensor(4, 6), f.tensor(6, 5), f.tensor(5, 7), f.tensor(7, 9)

    def loss(kind, to):
        left = call(kind, to, f.add, a @ b, f.tensor(1, 1, value=0.0))
        return call(kind, to, f.add, left @ c @ d, f.tensor(1, 1, value=0.0)).sum()

    expected = local_gradients((a @ b @ c @ d).sum())
    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [loss("sync", "worker1")])
        for leaf in (a, b, c, d):
            np.testing.assert_allclose(ctx.gradients()[leaf], expected[leaf], rtol=1e-5)


@MODES
def test_backward_unused_tensors(world, mode):
    x, y, z = f.tensor(3, 3), f.tensor(3, 3), f.tensor(3, 3)

    def loss(kind, to):
        return call(kind, to, f.first_of, x, y).sum() + (z * 2).sum()

    check_same(loss, [x, z], mode)


@MODES
def test_backward_multiple_output_tensors(world, mode):
    x = f.tensor(10, 2)

    def loss(kind, to):
        parts = call(kind, to, f.split_chunks, x, 5)
        return (parts[0] * parts[2] * parts[4]).sum()

    check_same(loss, [x], mode)


def test_backward_unused_send_function(world):
    x, y, z = f.tensor(3, 3), f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        gm.rpc_sync("worker2", f.mul, (y, z))
        used = gm.rpc_sync("worker1", f.mul, (x, x))
        gm.autograd.backward(ctx, [used.sum()])

        assert set(gm.autograd.get_gradients(ctx)) == {x}


def test_backward_unused_send_function_in_fast_mode_is_named_by_the_deadline(world):
    x, y = f.tensor(3, 3), f.tensor(2, 5)

    with gm.autograd.context() as ctx:
        gm.rpc_sync("worker2", f.mul, (y, y))
        used = gm.rpc_sync("worker1", f.mul, (x, x)).sum()
        begun = time.monotonic()
        with pytest.raises(GradientMissing, match=r"from worker0 to worker2.*\(2, 5\).*smart"):
            gm.autograd.backward(ctx, [used], mode="fast", timeout_s=3.0, retain_graph=True)
        assert time.monotonic() - begun < 20
        gm.autograd.backward(ctx, [used])

        assert set(gm.autograd.get_gradients(ctx)) == {x}


def test_backward_without_context(world):
    with gm.autograd.context() as ctx:
        pass

    with pytest.raises(ContextReleased, match=ctx.name):
        gm.autograd.backward(ctx, [f.tensor(1) * 2])


@MODES
def test_backward_without_rpc(world, mode):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [(x + y).sum()], mode=mode)

        grads = gm.autograd.get_gradients(ctx)
        assert set(grads) == {x, y}
        assert (grads[x] == 1).all()


def test_backward_invalid_args(world):
    leaf = gm.tensor(np.ones(1, np.float32), requires_grad=True)
    with gm.autograd.context() as ctx:
        with pytest.raises(TypeError, match="context"):
            gm.autograd.backward("name", [leaf * 2])
        with pytest.raises(TypeError, match="list of tensors"):
            gm.autograd.backward(ctx, leaf * 2)
        with pytest.raises(GradientError, match="no roots"):
            gm.autograd.backward(ctx, [])
        with pytest.raises(GradientError, match="root 0 has no gradient"):
            gm.autograd.backward(ctx, [gm.tensor([1.0])])
        with pytest.raises(GradientError, match="one element"):
            gm.autograd.backward(ctx, [leaf * gm.tensor([1.0, 2.0])])
        with pytest.raises(GradientError, match="leaf"):
            gm.autograd.backward(ctx, [leaf])


@MODES
def test_backward_multiple_roots(world, mode):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        roots = [gm.rpc_sync("worker1", fn, (x, y)).sum() for fn in (f.add, f.mul, f.add, f.mul)]
        gm.autograd.backward(ctx, roots, mode=mode)

        np.testing.assert_allclose(ctx.gradients()[x], 2 + 2 * y.data, rtol=1e-5)


def test_backward_different_dtypes(world):
    x, y = f.tensor(3, 3), f.tensor(3, 3, dtype=np.float64)

    with gm.autograd.context() as ctx:
        z = gm.rpc_sync("worker1", f.add, (x, y))
        gm.autograd.backward(ctx, [z.sum()])

        grads = gm.autograd.get_gradients(ctx)
        assert (grads[x].dtype, grads[y].dtype) == (np.float32, np.float64)


@MODES
def test_backward_complex_python_udf(world, mode):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    def loss(kind, to):
        total, product, difference = call(kind, to, f.both, x, y)
        return (total * product).sum() + difference.sum()

    check_same(loss, [x, y], mode)


@MODES
def test_backwards_nested_python_udf(world, mode):
    x = f.tensor(3, 3)
    names = ["worker2", "worker3", "worker0", "worker1"]

    with gm.autograd.context() as ctx:
        y = gm.rpc_sync("worker1", f.matmul_chain, (x, names))
        gm.autograd.backward(ctx, [y.sum()], mode=mode)
        found = ctx.gradients()[x]

    def chain(t, depth):
        return chain(t * 2, depth - 1) * t if depth else t * t

    expected = local_gradients(chain(x, len(names)).sum())[x]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_mixed_requires_grad(world):
    x = f.tensor(3, 3)
    y = gm.tensor(np.random.rand(3, 3).astype(np.float32))

    with gm.autograd.context() as ctx:
        z = gm.rpc_sync("worker1", f.mul, (x, y))
        assert z.requires_grad
        gm.autograd.backward(ctx, [z.sum()])

        grads = gm.autograd.get_gradients(ctx)
        assert set(grads) == {x}
        np.testing.assert_array_equal(grads[x], y.data)


def test_backward_accumulate_grads(world):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        loss = gm.rpc_sync("worker1", f.mul, (x, y)).sum()
        gm.autograd.backward(ctx, [loss], retain_graph=True)
        gm.autograd.backward(ctx, [loss])

        np.testing.assert_allclose(ctx.gradients()[x], 2 * y.data, rtol=1e-6)


def test_backward_accumulate_grads_nested(world):
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        loss = gm.rpc_sync("worker1", f.matmul_chain, (x, ["worker2", "worker3"])).sum()
        gm.autograd.backward(ctx, [loss], retain_graph=True)
        once = ctx.gradients()[x].copy()
        gm.autograd.backward(ctx, [loss])

        np.testing.assert_array_equal(ctx.gradients()[x], 2 * once)


def test_multiple_backward(world):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        loss = gm.rpc_sync("worker1", f.add, (x, y)).sum()
        for _ in range(1000):
            gm.autograd.backward(ctx, [loss], retain_graph=True)

        np.testing.assert_array_equal(ctx.gradients()[x], np.full((3, 3), 1000.0))


def test_concurrent_backwards_are_serialised(world):
    x, errors = f.tensor(3), []

    with gm.autograd.context() as ctx:
        loss = gm.rpc_sync("worker1", f.matmul_chain, (x, ["worker2"])).sum()

        def run():
            try:
                gm.autograd.backward(ctx, [loss], retain_graph=True)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert errors == []
        np.testing.assert_allclose(ctx.gradients()[x], 6 * 2 * 4 * 1.5 * x.data**2, rtol=1e-4)
