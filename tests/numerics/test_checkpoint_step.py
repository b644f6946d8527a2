"""A checkpoint made in the middle of a run is, bit for bit, the state after the step it names."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.kernels import coalesce, unique_inverse
from gradmesh.engine.optim import make_rule
from gradmesh.sdk import autograd
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.sdk.nn import RemoteEmbedding

STEPS, ROWS, DIM, TRAINERS = 400, 200, 3, 2


def batch(step, rank):
    rng = np.random.default_rng([step, rank])
    return rng.integers(0, ROWS, (12, 1)), rng.normal(size=(12, 1, DIM)).astype(np.float32)


def train(cluster, number, barrier):
    mesh = cluster.connect(f"trainer-{number}", role="trainer")
    table = make_table(mesh)
    layer = RemoteEmbedding([table])
    place = mesh.connection.join_trainers(10)
    if place.rank == 0:
        mesh.connection.start_run(place, [table.name])
    barrier.wait()
    for step in range(STEPS):
        ids, weights = batch(step, place.rank)
        with autograd.step_context(mesh, place.mark(step)) as ctx:
            autograd.backward(ctx, [(layer(ids) * Tensor(weights)).sum()])
            autograd.apply(ctx)


def make_table(mesh):
    return mesh.table("user", rows=ROWS, dim=DIM, optimizer=optim.Adagrad(lr=0.3))


def states(initial):
    """Rows and optimizer state after each number of steps, by one process."""
    rule = make_rule("adagrad", {})
    rows, slots = initial.copy(), rule.allocate(ROWS, DIM, np.float32)
    used = np.zeros(ROWS, bool)
    yield used.copy(), rows.copy(), {n: a.copy() for n, a in slots.items()}
    for step in range(STEPS):
        parts = []
        for rank in range(TRAINERS):
            ids, weights = batch(step, rank)
            unique, inverse = unique_inverse(ids[:, 0])
            parts.append((unique, coalesce(inverse, weights[:, 0], unique.size)))
        ids, inverse = unique_inverse(np.concatenate([unique for unique, _ in parts]))
        total = coalesce(inverse, np.concatenate([g for _, g in parts]), ids.size)
        rule.update_rows(rows, slots, ids, total / np.float32(TRAINERS), 0.3, step + 1)
        used[ids] = True
        yield used.copy(), rows.copy(), {n: a.copy() for n, a in slots.items()}


@pytest.mark.parametrize("servers", [1, 3])
def test_checkpoints_during_a_run_are_states_of_it(make_cluster, tmp_path, servers):
    cluster = make_cluster(parameter_servers=servers, trainers=TRAINERS)
    client = cluster.connect()
    initial = make_table(make_cluster(parameter_servers=1).connect()).lookup(np.arange(ROWS))
    barrier = threading.Barrier(TRAINERS + 1, timeout=120)

    with ThreadPoolExecutor(TRAINERS) as pool:
        jobs = [pool.submit(train, cluster, i, barrier) for i in range(TRAINERS)]
        barrier.wait()
        made = [client.checkpoint(tmp_path / "0")]
        while not all(job.done() for job in jobs):
            name, base = tmp_path / str(len(made)), tmp_path / str(len(made) - 1)
            made.append(client.checkpoint(name, base=base if len(made) % 3 else None))
        for job in jobs:
            job.result(timeout=120)

    known = list(states(initial))
    assert len({manifest.step for manifest in made} - {0, STEPS}) >= 2
    for number, manifest in enumerate(made):
        used, rows, slots = known[manifest.step]
        found = set()
        for file in manifest.tables[0].files:
            arrays = map_tensors(tmp_path / str(number) / file.path)
            ids = arrays["ids"]
            found |= set(ids.tolist())
            np.testing.assert_array_equal(arrays["rows"], rows[ids])
            for name, array in slots.items():
                np.testing.assert_array_equal(arrays[f"state.{name}"], array[ids])
        if manifest.base is None:
            # Frozen before any step: the next step may already have looked up its first rows.
            looked_up = {i for r in range(TRAINERS) for i in batch(manifest.step, r)[0].ravel()}
            before = set(np.flatnonzero(used).tolist())
            assert before <= found <= before | looked_up
        else:
            former_used, former, _ = known[made[number - 1].step]
            changed = (rows != former).any(axis=1) | (used & ~former_used)
            assert found >= set(np.flatnonzero(changed).tolist())
