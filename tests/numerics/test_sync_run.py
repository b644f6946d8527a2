"""N trainers and M servers equal, bit for bit, one process on the same micro-batches."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.autograd.ops import take_rows
from gradmesh.engine.kernels import coalesce, unique_inverse
from gradmesh.engine.optim import make_rule
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.table.recipe import Initializer

STEPS = 6
DIM = 3
ROWS = {"small": 5, "big": 64}
# One that depends on the number of the step, and one that keeps a sum for each row.
OPTIMIZERS = {
    "small": optim.SGD(lr=0.3, momentum=0.9, dampening=0.5),
    "big": optim.RowwiseAdagrad(lr=0.3),
}


def batch(step, rank):
    """Few ids, often the same ones, at first only one, so that most shards miss a step."""
    rng = np.random.default_rng([step, rank])
    ids = np.stack([rng.integers(0, 1 + rows * step // STEPS, 4) for rows in ROWS.values()], axis=1)
    return ids, rng.normal(size=(4, 2, DIM)).astype(np.float32)


def loss_of(rows, weights):
    # Not linear in the rows, so that a wrong row shows in the gradients.
    return (rows * rows * Tensor(weights)).sum()


def reference(initial, world_size):
    """Train in this process: gradients of the ranks summed in rank order, divided, applied once."""
    tables = {name: rows.copy() for name, rows in initial.items()}
    rules = {name: make_rule(o.rule.name, _options(o)) for name, o in OPTIMIZERS.items()}
    slots = {name: rule.allocate(ROWS[name], DIM, np.float32) for name, rule in rules.items()}
    for step in range(STEPS):
        grads = {name: [] for name in ROWS}
        for rank in range(world_size):
            ids, weights = batch(step, rank)
            leaves, looked_up = [], []
            for column, name in enumerate(ROWS):
                unique, inverse = unique_inverse(ids[:, column])
                leaf = Tensor(tables[name][unique], requires_grad=True)
                leaves.append((name, unique, leaf))
                looked_up.append(take_rows(leaf, inverse).reshape(4, 1, DIM))
            loss = sum(loss_of(rows, weights[:, i : i + 1]) for i, rows in enumerate(looked_up))
            loss.backward()
            for name, unique, leaf in leaves:
                grads[name].append((unique, leaf.grad.data))
        for name, parts in grads.items():
            ids, inverse = unique_inverse(np.concatenate([unique for unique, _ in parts]))
            total = coalesce(inverse, np.concatenate([g for _, g in parts]), ids.size)
            mean = total if world_size == 1 else total / np.float32(world_size)
            lr = OPTIMIZERS[name].lr
            rules[name].update_rows(tables[name], slots[name], ids, mean, lr, step + 1)
    return tables


def _options(optimizer):
    return {name: value for name, value in optimizer.defaults.items() if name != "lr"}


def make_tables(mesh):
    return [
        mesh.table(
            name,
            rows=rows,
            dim=DIM,
            optimizer=OPTIMIZERS[name],
            initializer=Initializer.uniform(1.0),
            seed=5,
        )
        for name, rows in ROWS.items()
    ]


def train(cluster, rank_name, barrier, delays):
    mesh = cluster.connect(rank_name, role="trainer")
    tables = make_tables(mesh)
    layer = RemoteEmbedding(tables)
    place = mesh.connection.join_trainers(10)
    if place.rank == 0:
        mesh.connection.start_run(place, [table.name for table in tables])
    barrier.wait()
    pause = threading.Event()
    for step in range(STEPS):
        ids, weights = batch(step, place.rank)
        with autograd.step_context(mesh, place.mark(step)) as ctx:
            rows = layer(ids)
            autograd.backward(ctx, [loss_of(rows, weights)])
            pause.wait(delays[step, place.rank])
            autograd.apply(ctx)
    barrier.wait()
    return {table.name: table.lookup(np.arange(ROWS[table.name])) for table in tables}


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_a_run_equals_one_process(make_cluster, trainers, servers):
    cluster = make_cluster(parameter_servers=servers, trainers=trainers)
    client = cluster.connect()
    initial = {
        table.name: table.lookup(np.arange(ROWS[table.name])) for table in make_tables(client)
    }
    for table in make_tables(client):  # dropped: a run begins from the initial rows
        table.push([0, 1], np.ones((2, DIM), np.float32))
    barrier = threading.Barrier(trainers, timeout=120)
    delays = np.random.default_rng(trainers).uniform(0, 0.004, (STEPS, trainers))

    with ThreadPoolExecutor(trainers) as pool:
        jobs = [
            pool.submit(train, cluster, f"trainer-{i}", barrier, delays) for i in range(trainers)
        ]
        found = [job.result(timeout=120) for job in jobs]

    expected = reference(initial, trainers)
    for rows in found:
        for name in ROWS:
            np.testing.assert_array_equal(rows[name], expected[name])
            assert not (rows[name] == initial[name]).all()
