"""Contexts over four workers; names as in upstream's dist_autograd_test where it has them."""

import threading

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import ReceiveNode
from gradmesh.protos.errors import ContextReleased
from tests.integration.dist_autograd import functions as f

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]


def inside(target, function, *args):
    return gm.rpc_sync(target, function, args)


def test_autograd_context(world):
    names = set()
    for _ in range(200):
        with gm.autograd.context() as ctx:
            assert ctx.id.worker == "worker0"
            assert gm.autograd.find_context(ctx.name) is ctx
            names.add(ctx.name)

    assert len(names) == 200
    for name in names:
        with pytest.raises(ContextReleased, match=name):
            gm.autograd.find_context(name)


def test_nested_context(world):
    with (
        gm.autograd.context(),
        pytest.raises(RuntimeError, match="leave it first"),
        gm.autograd.context(),
    ):
        pass


def call(kind, target, function, *args):
    if kind == "sync":
        return gm.rpc_sync(target, function, args)
    if kind == "async":
        return gm.rpc_async(target, function, args).result()
    return gm.rpc.remote(target, function, args).to_here()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_graph_for_python_call(world, kind):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        result = call(kind, "worker1", f.add, x, y)
        (sent,) = ctx.messages.sent.values()
        there = inside("worker1", f.graph_here)

        assert sent.entry.targets == (x, y)
        assert ctx.messages.received == [result.grad_fn]
        assert type(result.grad_fn) is ReceiveNode
        assert there == {"sends": {"1": ["_Add"]}, "recvs": 1, "peers": ["worker0"]}
        name = ctx.name

    with pytest.raises(ContextReleased):
        gm.autograd.find_context(name)


def test_graph_for_python_remote_call(world):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        result = gm.rpc.remote("worker1", f.add, (x, y)).to_here()
        assert len(ctx.messages.sent) == 1
        assert result.grad_fn in ctx.messages.received
        assert inside("worker1", f.graph_here)["recvs"] == 1


@pytest.mark.parametrize("kind", ["sync", "remote"])
def test_graph_for_py_nested_call(world, kind):
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        call(kind, "worker1", f.matmul_chain, x, ["worker2", "worker3"])
        graphs = {rank: inside(f"worker{rank}", f.graph_here) for rank in (1, 2, 3)}
        mine = (len(ctx.messages.sent), len(ctx.messages.received))

    assert mine == (1, 1)
    assert [len(graphs[rank]["sends"]) for rank in (1, 2, 3)] == [2, 2, 1]
    assert [graphs[rank]["recvs"] for rank in (1, 2, 3)] == [2, 2, 1]


@pytest.mark.parametrize("kind", ["sync", "remote"])
def test_graph_for_py_nested_call_itself(world, kind):
    x = f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        call(kind, "worker1", f.matmul_chain, x, ["worker0"])

        assert len(ctx.messages.sent) == 2
        assert len(ctx.messages.received) == 2


def test_no_graph_with_tensors_not_require_grad(world):
    x = gm.tensor(np.ones((3, 3), np.float32))

    with gm.autograd.context() as ctx:
        for kind in ("sync", "async", "remote"):
            result = call(kind, "worker1", f.add, x, x)
            assert not result.requires_grad
        there = inside("worker1", f.graph_here)

        assert (ctx.messages.sent, ctx.messages.received) == ({}, [])
        assert there == {"sends": {}, "recvs": 0, "peers": ["worker0"]}


@pytest.mark.parametrize("kind", ["sync", "remote"])
def test_rpc_complex_args(world, kind):
    tensors = [gm.tensor(np.ones((3, 3), np.float32), requires_grad=i % 2 == 0) for i in range(10)]

    with gm.autograd.context() as ctx:
        result = call(kind, "worker1", f.complex_args, tensors)
        (sent,) = ctx.messages.sent.values()

        assert list(sent.entry.targets) == tensors[::2]
        assert ctx.messages.known_by == {"worker1"}
        gm.autograd.backward(ctx, [result.sum()])
        assert set(gm.autograd.get_gradients(ctx)) == set(tensors[::2])


@pytest.mark.parametrize("what", ["tensor_with_grad", "tensor_no_grad", "no_tensors", "nested_rpc"])
def test_context_cleanup(world, what):
    x = gm.tensor(np.ones((3, 3), np.float32), requires_grad="no" not in what)

    with gm.autograd.context():
        for rank in (1, 2, 3):
            if what == "no_tensors":
                inside(f"worker{rank}", f.add, 1, 2)
            elif what == "nested_rpc":
                inside(f"worker{rank}", f.matmul_chain, x, [f"worker{rank % 3 + 1}"])
            else:
                inside(f"worker{rank}", f.add, x, x)
        opened = world.open_contexts()

    assert opened == [1] * 4
    world.wait_clean()


def test_worker_ids_recorded(world):
    x = gm.tensor(np.ones((3, 3), np.float32))

    with gm.autograd.context() as ctx:
        for rank in (1, 2):
            inside(f"worker{rank}", f.add, x, x)

        assert ctx.messages.known_by == {"worker1", "worker2"}


def test_error_in_context(world):
    x = f.tensor(3, 6)

    with gm.autograd.context(), pytest.raises(Exception, match="shape"):
        inside("worker1", f.shape_error, x)


def test_thread_local_context_id(world):
    x, y = f.tensor(3, 3), f.tensor(3, 3)

    with gm.autograd.context() as ctx:
        result = gm.rpc_async("worker1", f.slow_add, (x, y, 0.3)).result()
        gm.autograd.backward(ctx, [result.sum()])

        assert set(gm.autograd.get_gradients(ctx)) == {x, y}


def test_other_threads_take_part_when_they_carry_the_context(world):
    x, results = f.tensor(3), []

    def work():
        results.append(inside("worker1", f.mul, x, x))

    with gm.autograd.context() as ctx:
        threads = [threading.Thread(target=gm.autograd.carry(work)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        alone = threading.Thread(target=work)
        alone.start()
        alone.join(20)
        gm.autograd.backward(ctx, [sum(r.sum() for r in results[:4])])

        np.testing.assert_allclose(gm.autograd.get_gradients(ctx)[x], 8 * x.data, rtol=1e-6)
        assert results[4].is_leaf


def test_debug_info(world):
    x = f.tensor(3)

    with gm.autograd.context() as ctx:
        y = inside("worker1", f.mul, x, x)
        gm.autograd.backward(ctx, [y.sum()])
        assert gm.rpc.debug_info()["num_autograd_contexts"] == 1
        there = inside("worker1", f.counters)

    assert there == {"num_autograd_contexts": 1, "num_current_backward_passes": 0}
    world.wait_clean()
    info = gm.rpc.debug_info()
    assert (info["num_autograd_contexts"], info["num_current_backward_passes"]) == (0, 0)


def test_a_late_call_does_not_revive_a_released_context(world):
    x = f.tensor(3)
    with gm.autograd.context() as ctx:
        inside("worker1", f.mul, x, x)
    world.wait_clean()

    with ctx.bind(), pytest.raises(ContextReleased):
        inside("worker1", f.mul, x, x)
    assert world.open_contexts() == [0] * 4
