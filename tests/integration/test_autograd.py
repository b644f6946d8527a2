"""A backward pass over this process and the servers, outside a run."""

import gc
import threading
import weakref

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine import optim
from gradmesh.engine.autograd import GradientError, Tensor, no_grad
from gradmesh.protos.errors import ContextReleased, InvalidRequest
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.transport.metrics import RpcMetrics


def make_table(mesh, name="user", rows=20, dim=3, **options):
    options.setdefault("optimizer", optim.SGD(lr=1.0))
    options.setdefault("initializer", Initializer.constant(1.0))
    return mesh.table(name, rows=rows, dim=dim, **options)


def counters(cluster, mesh, name="user"):
    return [store.table(name, mesh.connection.deadline()).steps for store in cluster.stores]


def open_contexts(cluster):
    return [store.contexts.open_count() for store in cluster.stores]


def test_gradients_of_rows_are_applied_on_their_servers(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    layer = RemoteEmbedding(table)
    weight = Tensor(np.full((3,), 2.0, np.float32), requires_grad=True)

    with autograd.context(mesh) as ctx:
        loss = (layer(np.array([1, 2, 1])) * weight).sum()
        autograd.backward(ctx, [loss])
        autograd.apply(ctx)

    rows = table.lookup(np.arange(20))
    np.testing.assert_array_equal(rows[1], [-3] * 3)
    np.testing.assert_array_equal(rows[2], [-1] * 3)
    assert (np.delete(rows, [1, 2], axis=0) == 1).all()
    np.testing.assert_array_equal(ctx.gradients()[weight], [3] * 3)
    assert weight.grad is None
    assert open_contexts(cluster) == [0, 0]


def test_a_step_changes_rows_and_parameters_once(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    weight = Tensor(np.full((3,), 2.0, np.float32), requires_grad=True)
    sgd = optim.SGD([weight], lr=0.5)

    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [(RemoteEmbedding(table)(np.array([4])) * weight).sum()])
        gm.step(ctx, sgd)
        with pytest.raises(ContextReleased, match="was applied"):
            gm.step(ctx, sgd)

    np.testing.assert_array_equal(table.lookup([4])[0], [-1] * 3)
    np.testing.assert_array_equal(weight.data, [1.5] * 3)


def test_a_context_that_was_applied_costs_no_further_message(cluster):
    metrics = RpcMetrics("client")
    mesh = cluster.connect(metrics=metrics)
    layer = RemoteEmbedding(make_table(mesh))

    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [layer(np.array([1, 2, 1])).sum()])
        autograd.apply(ctx)

    samples = [sample for metric in metrics.collect() for sample in metric.samples]
    asked = {sample.labels["rpc"].rpartition("/")[2] for sample in samples}
    assert {"Lookup", "Backward", "Apply"} <= asked
    assert "ReleaseContext" not in asked
    assert open_contexts(cluster) == [0, 0]


def test_a_context_is_freed_by_reference_count_without_the_collector(cluster, eventually):
    mesh = cluster.connect()
    layer = RemoteEmbedding(make_table(mesh))
    gc.collect()
    gc.disable()
    try:
        with autograd.context(mesh) as ctx:
            autograd.backward(ctx, [layer(np.array([1, 2, 1])).sum()])
            autograd.apply(ctx)
        seen = weakref.ref(ctx)
        del ctx
        # The answering threads may still be returning from that call.
        eventually(lambda: seen() is None)
    finally:
        gc.enable()


def test_several_tables_of_different_rows_in_one_layer(cluster):
    mesh = cluster.connect()
    small, big = make_table(mesh, "small", rows=3), make_table(mesh, "big", rows=1000)
    layer = RemoteEmbedding([small, big])
    ids = np.array([[0, 999], [2, 5], [0, 5]])

    with autograd.context(mesh) as ctx:
        found = layer(ids)
        autograd.backward(ctx, [(found * found).sum()])
        autograd.apply(ctx)

    assert found.shape == (3, 2, 3)
    np.testing.assert_array_equal(small.lookup([0, 1, 2])[:, 0], [-3, 1, -1])
    np.testing.assert_array_equal(big.lookup([5, 999, 0])[:, 0], [-3, -1, 1])


def test_a_large_read_is_split_and_returns_the_same_rows(cluster):
    mesh = cluster.connect()
    tables = [make_table(mesh, f"t{number}", rows=50 + number) for number in range(5)]
    rng = np.random.default_rng(0)
    for table in tables:
        ids = np.arange(50)
        table.push(ids, rng.standard_normal((50, 3)).astype(np.float32))
    ids = rng.integers(0, 50, (4000, 5))

    found = RemoteEmbedding(tables)(ids)

    for column, table in enumerate(tables):
        np.testing.assert_array_equal(found.data[:, column], table.lookup(ids[:, column]))
    ids[-1, -1] = 54
    with pytest.raises(IndexError, match="'t4': id 54"):
        RemoteEmbedding(tables)(ids)
    # Pending lookups of the other tables are cancelled; the next read works.
    ids[-1, -1] = 53
    assert RemoteEmbedding(tables)(ids).shape == (4000, 5, 3)


def test_an_id_beyond_its_own_table_names_that_table(cluster):
    mesh = cluster.connect()
    layer = RemoteEmbedding([make_table(mesh, "small", rows=3), make_table(mesh, "big", rows=10)])

    with pytest.raises(IndexError, match="'small': id 3"):
        layer(np.array([[3, 3]]))


@pytest.mark.parametrize("optimizer", [optim.SGD(lr=1.0), optim.Adagrad(lr=1.0)])
def test_several_lookups_of_a_row_make_one_step(cluster, optimizer):
    mesh = cluster.connect()
    twice, once = (make_table(mesh, name, optimizer=optimizer) for name in ("twice", "once"))

    with autograd.context(mesh) as ctx:
        loss = RemoteEmbedding(twice)([1, 2]).sum() + RemoteEmbedding(twice)([2, 1, 1]).sum()
        loss = loss + RemoteEmbedding(once)([1, 2, 2, 1, 1]).sum()
        autograd.backward(ctx, [loss])
        autograd.apply(ctx)

    np.testing.assert_array_equal(twice.lookup([1, 2, 3]), once.lookup([1, 2, 3]))
    assert max(counters(cluster, mesh, "twice")) == 1


def test_a_lookup_that_the_loss_does_not_use_gets_nothing(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    layer = RemoteEmbedding(table)

    with autograd.context(mesh) as ctx:
        layer([3])
        autograd.backward(ctx, [layer([4]).sum()])
        autograd.apply(ctx)

    np.testing.assert_array_equal(table.lookup([3, 4])[:, 0], [1, 0])


def test_an_empty_batch_passes_through(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)

    with autograd.context(mesh) as ctx:
        found = RemoteEmbedding(table)(np.empty((0,), np.int64))
        autograd.backward(ctx, [found.sum()])
        autograd.apply(ctx)

    assert found.shape == (0, 3)
    assert counters(cluster, mesh) == [0, 0]


def test_without_gradients_a_context_keeps_nothing_on_the_servers(cluster):
    mesh = cluster.connect()
    layer = RemoteEmbedding(make_table(mesh))

    with autograd.context(mesh) as ctx, no_grad():
        found = layer([1, 2])
        kept = open_contexts(cluster)

    assert not found.requires_grad
    assert kept == [0, 0]
    assert ctx.lookups == []


def test_outside_a_context_rows_are_only_read(cluster):
    mesh = cluster.connect()
    layer = RemoteEmbedding(make_table(mesh))

    assert not layer([1, 2]).requires_grad
    assert open_contexts(cluster) == [0, 0]


def test_leaving_a_context_releases_it_on_the_servers(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    layer = RemoteEmbedding(table)

    with autograd.context(mesh) as ctx:
        loss = layer(np.arange(20)).sum()
        inside = open_contexts(cluster)

    assert inside == [1, 1]
    assert open_contexts(cluster) == [0, 0]
    with pytest.raises(ContextReleased, match=r"client-\w+/\d+/1.*open a new one"):
        autograd.backward(ctx, [loss])
    with pytest.raises(ContextReleased):
        autograd.apply(ctx)
    assert (table.lookup(np.arange(20)) == 1).all()


def test_an_error_inside_a_context_is_the_one_that_arrives(cluster):
    mesh = cluster.connect()
    layer = RemoteEmbedding(make_table(mesh))

    def fail():
        with autograd.context(mesh):
            layer(np.arange(20))
            mesh.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert autograd.current_context() is None


def test_backwards_over_the_same_rows_add_up(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)

    with autograd.context(mesh) as ctx:
        loss = RemoteEmbedding(table)([1, 2]).sum()
        autograd.backward(ctx, [loss], retain_graph=True)
        autograd.backward(ctx, [loss * 2])
        autograd.apply(ctx)

    np.testing.assert_array_equal(table.lookup([1, 2, 3])[:, 0], [-2, -2, 1])
    assert max(counters(cluster, mesh)) == 1


def test_a_failed_backward_does_not_count(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    weight = Tensor(np.full((3,), 2.0, np.float32), requires_grad=True)

    def fail(grad):
        raise ArithmeticError("no gradient today")

    with autograd.context(mesh) as ctx:
        found = RemoteEmbedding(table)(np.arange(20))
        early, late = found * weight, weight * 1
        late.register_hook(fail)
        with pytest.raises(ArithmeticError, match="today"):
            autograd.backward(ctx, [early.sum() + late.sum()], retain_graph=True)
        after_failure = ctx.gradients()
        autograd.backward(ctx, [early.sum()])
        autograd.apply(ctx)

    assert after_failure == {}
    np.testing.assert_array_equal(table.lookup([1, 2, 3])[:, 0], [-1, -1, -1])


def test_a_local_backward_through_rows_names_the_remedy(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)

    with autograd.context(mesh), pytest.raises(GradientError, match=r"gm.autograd.backward"):
        RemoteEmbedding(table)([1]).sum().backward()


@pytest.mark.parametrize(
    ("roots", "error", "match"),
    [
        (None, TypeError, "list of tensors"),
        ([1.0], TypeError, "list of tensors"),
        ([], GradientError, "no roots"),
        ([Tensor(np.ones(()))], GradientError, "no gradient"),
        ([Tensor(np.ones(3), requires_grad=True) * 2], GradientError, "one element"),
        ([Tensor(np.ones(()), requires_grad=True)], GradientError, "leaf"),
    ],
)
def test_backward_invalid_args(cluster, roots, error, match):
    with autograd.context(cluster.connect()) as ctx, pytest.raises(error, match=match):
        autograd.backward(ctx, roots)


def test_a_nan_gradient_changes_nothing(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)

    with autograd.context(mesh) as ctx:
        found = RemoteEmbedding(table)(np.arange(20))
        scale = np.ones((20, 1), np.float32)
        scale[7] = np.nan
        with pytest.raises(InvalidRequest, match=r"table 'user': a gradient is NaN.*ps-\d"):
            autograd.backward(ctx, [(found * Tensor(scale)).sum()])

    assert (table.lookup(np.arange(20)) == 1).all()
    assert counters(cluster, mesh) == [0, 0]
    assert open_contexts(cluster) == [0, 0]


def test_a_context_is_applied_once(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)

    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [RemoteEmbedding(table)([1]).sum()])
        autograd.apply(ctx)
        with pytest.raises(ContextReleased, match="applied"):
            autograd.apply(ctx)

    np.testing.assert_array_equal(table.lookup(1), [0] * 3)


def test_contexts_do_not_nest_on_a_thread(cluster):
    mesh = cluster.connect()

    with (
        autograd.context(mesh),
        pytest.raises(RuntimeError, match="leave it first"),
        autograd.context(mesh),
    ):
        pass


def test_contexts_of_threads_do_not_mix(cluster):
    mesh = cluster.connect()
    table = make_table(mesh, rows=8)
    layer = RemoteEmbedding(table)
    both_inside = threading.Barrier(2, timeout=120)

    def train(row):
        for _ in range(5):
            with autograd.context(mesh) as ctx:
                found = layer([row, row + 1])
                both_inside.wait()
                autograd.backward(ctx, [found.sum()])
                autograd.apply(ctx)

    threads = [threading.Thread(target=train, args=(row,)) for row in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    np.testing.assert_array_equal(table.lookup([0, 1, 2, 3])[:, 0], [-4, -9, -4, 1])


def test_a_context_of_another_mesh_is_refused(cluster):
    mesh, other = cluster.connect(), cluster.connect()
    layer = RemoteEmbedding(make_table(mesh))

    with autograd.context(other), pytest.raises(InvalidRequest, match="another mesh"):
        layer([1])


def test_tables_that_do_not_fit_together_are_refused(cluster):
    mesh = cluster.connect()
    narrow, wide = make_table(mesh, "narrow", dim=2), make_table(mesh, "wide", dim=3)

    with pytest.raises(InvalidRequest, match="same dim and dtype"):
        RemoteEmbedding([narrow, wide])
    with pytest.raises(InvalidRequest, match="at least one table"):
        RemoteEmbedding([])
    with pytest.raises(InvalidRequest, match=r"\(2, 3\) for 1 tables"):
        RemoteEmbedding(narrow)(np.zeros((2, 3), np.int64))
