"""Parameters, references and tables of other workers, named as in upstream."""

import uuid

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import run_backward
from tests.integration.dist_autograd import functions as f
from tests.integration.dist_autograd.compare import call

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]

MODES = pytest.mark.parametrize("mode", ["smart", "fast"])


@MODES
def test_grad_only_on_return_value(world, mode):
    for kind in ("sync", "remote"):
        with gm.autograd.context() as ctx:
            y = call(kind, "worker1", f.make_kept, "only", [[1.0, 2.0], [3.0, 4.0]])
            assert y.requires_grad
            gm.autograd.backward(ctx, [y.sum()], mode=mode)
            found = gm.rpc_sync("worker1", f.kept_gradient, ("only",))
            assert ctx.gradients() == {}

        np.testing.assert_array_equal(found, np.ones((2, 2)))
        assert gm.rpc_sync("worker1", f.kept_is_untouched, ("only",))


@MODES
@pytest.mark.parametrize(("callee", "owner"), [("worker1", "worker1"), ("worker1", "worker2")])
def test_backward_rref(world, callee, owner, mode):
    """test_backward_rref, _multi: a reference is an argument of its owner, or of another worker."""
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        rref = gm.remote(owner, f.make_kept, ("held", np.ones((3, 3)).tolist()))
        y = gm.rpc_sync(callee, f.add_ref, (rref, x))
        gm.autograd.backward(ctx, [(y * x).sum()], mode=mode)
        there = gm.rpc_sync(owner, f.gradient_of_ref, (rref,))
        mine = ctx.gradients()[x]

    np.testing.assert_allclose(mine, 2 * x.data + 1, rtol=1e-6)
    np.testing.assert_array_equal(there, x.data)


@MODES
def test_backward_rref_nested(world, mode):
    """A reference goes through two workers to a third, which fetches from a fourth."""
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        rref = gm.remote("worker3", f.make_kept, ("nested", np.ones((3, 3)).tolist()))
        y = gm.rpc_sync("worker1", f.add_ref_elsewhere, ("worker2", rref, x))
        gm.autograd.backward(ctx, [(y * x).sum()], mode=mode)
        there = gm.rpc_sync("worker3", f.gradient_of_ref, (rref,))
        mine = ctx.gradients()[x]

    np.testing.assert_allclose(mine, 2 * x.data + 1, rtol=1e-6)
    np.testing.assert_array_equal(there, x.data)


def test_rref_backward(world):
    x = f.tensor(2, 2)

    with gm.autograd.context() as ctx:
        rref = gm.rpc.remote("worker1", f.mul, (x, x))
        total = rref.remote().sum()
        total.backward(ctx)

        np.testing.assert_allclose(ctx.gradients()[x], 2 * x.data, rtol=1e-6)


def test_trainer_ps(world):
    """Each trainer's context gets its own gradient of one tensor."""
    gm.rpc_sync("worker3", f.make_kept, ("shared", [1.0, 2.0, 3.0]))
    outs = []
    for factor in (1.0, 2.0, 3.0):
        with gm.autograd.context() as ctx:
            x = gm.tensor(np.full(3, factor, np.float32), requires_grad=True)
            y = gm.rpc_sync("worker3", f.mul_kept, ("shared", x))
            gm.autograd.backward(ctx, [y.sum()])
            outs.append(gm.rpc_sync("worker3", f.kept_gradient, ("shared",)).tolist())

    assert outs == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_async_dist_autograd(world):
    """Three workers hammer one with many contexts at once."""
    futures = [
        gm.rpc_async(f"worker{rank}", f.hammer, (["worker0"], 20, 3), timeout_s=100)
        for rank in (1, 2, 3)
    ]

    assert [future.result() for future in futures] == [60] * 3


def test_embedding_bag_with_no_grad_tensors(world):
    ids, offsets = np.array([1, 2, 4, 5, 4, 3, 2, 9]), np.array([0, 4])
    weights = f.tensor(8)
    gm.rpc_sync("worker1", f.make_bag, ("bag", 16, 16))
    local = gm.nn.EmbeddingBag(16, 16, mode="sum", sparse=True)
    local.weight.data[...] = np.arange(256, dtype=np.float32).reshape(16, 16) / 100

    with gm.autograd.context() as ctx:
        y = gm.rpc_sync("worker1", f.embedding_bag, ("bag", ids, offsets, weights))
        gm.autograd.backward(ctx, [y.sum()], retain_graph=True)
        gm.autograd.backward(ctx, [y.sum()])
        remote = gm.rpc_sync("worker1", f.bag_gradient, ("bag",))
        mine = ctx.gradients()[weights]

    expected = {}
    out = local(gm.tensor(ids), gm.tensor(offsets), per_sample_weights=weights).sum()
    run_backward([out * 2], into=expected)
    assert isinstance(remote, gm.autograd.RowGrad)
    np.testing.assert_allclose(
        remote.to_dense(), expected[local.weight].to_dense(), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(mine, expected[weights], rtol=1e-5)


def test_results_are_the_same_bits_on_every_run(world):
    x = gm.tensor(np.linspace(0.1, 1.7, 24, dtype=np.float32).reshape(4, 6), requires_grad=True)
    seen = set()

    for _ in range(10):
        with gm.autograd.context() as ctx:
            futures = [
                gm.rpc_async(f"worker{rank}", f.matmul_chain, (x, [f"worker{rank % 3 + 1}"]))
                for rank in (1, 2, 3)
            ]
            loss = sum((future.result() * x).sum() for future in futures)
            gm.autograd.backward(ctx, [loss])
            seen.add(ctx.gradients()[x].tobytes())

    assert len(seen) == 1


def test_two_trainers_step_one_owner(world):
    gm.rpc_sync("worker3", f.make_kept, ("stepped", [1.0, 1.0, 1.0, 1.0]))

    futures = [
        gm.rpc_async(f"worker{rank}", f.train_owner, ("worker3", "stepped", 15, 0.005))
        for rank in (1, 2)
    ]
    losses = [future.result() for future in futures]

    assert all(loss[-1] < loss[0] for loss in losses)
    assert (gm.rpc_sync("worker3", f.fetch_kept, ("stepped",)) < 1).all()


def test_tables_and_workers_in_one_backward(world):
    mesh = world.node.mesh
    table = mesh.table(
        f"mixed-{uuid.uuid4().hex[:8]}",
        rows=20,
        dim=3,
        optimizer=gm.optim.SGD(lr=1.0),
        initializer=gm.Initializer.constant(1.0),
    )
    layer = gm.nn.RemoteEmbedding(table)
    weight = gm.tensor(np.full(3, 2.0, np.float32), requires_grad=True)

    with gm.autograd.context() as ctx:
        rows = layer(np.array([1, 2, 1]))
        scaled = gm.rpc_sync("worker1", f.mul, (rows, weight))
        gm.autograd.backward(ctx, [scaled.sum()])
        gm.autograd.apply(ctx)
        found = ctx.gradients()[weight]

    np.testing.assert_array_equal(found, [3.0] * 3)
    np.testing.assert_array_equal(table.lookup([1, 2, 3])[:, 0], [-3, -1, 1])
