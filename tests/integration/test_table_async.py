"""Futures of tables, requests bigger than a message, and servers that move in between."""

import threading

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.protos.errors import DeadlineExceeded, IdOutOfRange, TableNotFound, Unreachable
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.table.recipe import Initializer

ROWS, DIM = 3000, 8


def make_table(mesh, name="user", **options):
    options = {"optimizer": optim.SGD(lr=1.0), "initializer": Initializer.constant(0)} | options
    return mesh.table(name, rows=ROWS, dim=DIM, **options)


def test_a_lookup_and_a_push_without_waiting(cluster):
    table = make_table(cluster.connect(), initializer=Initializer.normal(1.0))
    ids = np.array([[5, 6], [6, 7]])
    before = table.lookup(ids)
    called = threading.Event()

    future = table.lookup_async(ids)
    future.add_done_callback(lambda f: called.set())

    np.testing.assert_array_equal(future.result(timeout_s=10), before)
    assert called.wait(120)
    pushes = [table.push_async([5], np.ones((1, DIM), np.float32)) for _ in range(10)]
    assert [push.result() for push in pushes] == [None] * 10
    np.testing.assert_allclose(table.lookup(5), before[0, 0] - 10, atol=1e-5)


def test_many_lookups_under_way_need_one_thread(cluster, own_threads):
    table = make_table(cluster.connect(), initializer=Initializer.normal(1.0))
    everything = table.lookup(np.arange(ROWS))

    futures = [table.lookup_async(np.arange(i, i + 50)) for i in range(100)]
    while not all(future.done() for future in futures):
        futures[-1].exception()

    assert own_threads.names().count("futures") == 1
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), everything[i : i + 50])


def test_bad_input_is_refused_before_anything_is_sent(cluster):
    table = make_table(cluster.connect())

    with pytest.raises(IdOutOfRange):
        table.lookup_async([ROWS])
    with pytest.raises(IdOutOfRange):
        table.push_async([1, -1], np.ones((2, DIM), np.float32))

    assert not table.lookup([1]).any()


def test_errors_of_a_future_are_typed(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    lost = type(table)(table.spec, table.servers, lambda: ("w", 1, 1), 5.0)
    lost.spec.name = "nobody-made-it"
    lost = type(table)(lost.spec, table.servers, lambda: ("w", 1, 1), 5.0)

    assert isinstance(lost.lookup_async([1]).exception(), TableNotFound)
    mesh.close()
    with pytest.raises(Unreachable):
        table.lookup_async([1]).result()


@pytest.mark.parametrize("max_frame_bytes", [4096, 20_000])
def test_requests_bigger_than_a_message_are_cut(cluster, max_frame_bytes):
    mesh = cluster.connect(max_frame_bytes=max_frame_bytes)
    table = make_table(mesh)
    ids = np.concatenate([np.arange(ROWS), np.arange(0, ROWS, 3)])
    grads = np.random.default_rng(0).normal(size=(ids.size, DIM)).astype(np.float32)

    table.push(ids, grads)

    expected = np.zeros((ROWS, DIM), np.float32)
    np.subtract.at(expected, ids, grads)
    np.testing.assert_allclose(table.lookup(np.arange(ROWS)), expected, atol=1e-6)


def test_a_context_of_a_split_lookup_applies_all_its_gradients(cluster):
    mesh = cluster.connect(max_frame_bytes=8192)
    small, plain = make_table(mesh), make_table(cluster.connect(), "plain")
    ids = np.arange(ROWS)
    factors = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)

    with autograd.context(mesh) as ctx:
        rows = RemoteEmbedding(small)(ids)
        autograd.backward(ctx, [(rows * Tensor(factors)).sum()])
        autograd.apply(ctx)
    plain.push(ids, factors)

    np.testing.assert_array_equal(small.lookup(ids), plain.lookup(ids))


def test_a_push_finds_a_server_that_moved_and_counts_once(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    ids = np.arange(ROWS)
    ones = np.ones((ROWS, DIM), np.float32)
    table.push(ids, ones)
    cluster.restart_server(0)

    table.push(ids, ones)

    # The restarted server has initial rows; the other one has both pushes, each once.
    rows = table.lookup(ids)
    moved = cluster.stores[0].table("user", mesh.connection.deadline()).row_count
    assert (rows[:, 0] == -1).sum() == moved
    assert (rows[:, 0] == -2).sum() == ROWS - moved


def test_a_push_that_cannot_arrive_ends_by_its_deadline(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    table.push([1], np.ones((1, DIM), np.float32))
    for node in cluster.servers:
        node.server.drain(0)

    with pytest.raises((Unreachable, DeadlineExceeded)):
        table.push(np.arange(100), np.ones((100, DIM), np.float32), timeout_s=1.0)
