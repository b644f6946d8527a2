"""Whole jobs are exact with any number of servers, lane, prefetching, model and DDP."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine.autograd import as_tensor, run_backward
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.engine.optim import SGD
from gradmesh.sdk.mesh.connect import connect, join_mesh
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.trainer.data import DataConfig
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.model import create_tables, make_model
from gradmesh.trainer.job.run import TrainingRun
from gradmesh.trainer.job.spec import JobSpec, dense_rate
from gradmesh.trainer.models import LocalEmbedding, ModelConfig, row_dim
from gradmesh.trainer.models.config import MODEL_NAMES
from gradmesh.trainer.process_group import Endpoint

STEPS = 5
BASE = JobSpec(
    job=JobConfig(
        steps=STEPS, batch_size=24, table_optimizer="sgd", table_learning_rate=2.0, optimizer="sgd",
        learning_rate=0.2, eval_batches=2, log_every=2, seed=5,
    ),
    data=DataConfig(rows=(40, 15, 9), dense_features=3),
    model=ModelConfig(dim=4, bottom=(6,), top=(8,)),
)  # fmt: skip


def variant(model=None, data=None, **job):
    changed = dataclasses.replace(BASE, job=dataclasses.replace(BASE.job, **job))
    if model is not None:
        changed = dataclasses.replace(changed, model=dataclasses.replace(BASE.model, **model))
    return dataclasses.replace(changed, data=data or BASE.data)


def read_tables(mesh, spec, source):
    tables = create_tables(mesh, spec, source.fields, STEPS)
    return [t.lookup(np.arange(n)) for t, n in zip(tables, source.fields.rows, strict=True)]


def together(cluster, spec, trainers, lane="auto"):
    """Losses, dense parameters and rows after a job over real protocols."""
    source = spec.source()

    def train(number):
        mesh = join_mesh(
            cluster.address,
            name=f"trainer-{number}",
            role="trainer",
            address="127.0.0.1:1",
            dial=Dialer(lane=lane),
        )
        place = mesh.connection.join_trainers(20)
        with mesh, TrainingRun(mesh, place, spec, source, Endpoint()) as run:
            losses = [run.take_step(step) for step in range(STEPS)]
            run.finish()
            arrays = [p.data.tobytes() for p in run.model.parameters()]
        return place.rank, losses, arrays

    with ThreadPoolExecutor(trainers) as pool:
        results = sorted(pool.map(train, range(trainers), timeout=120))
    with connect(cluster.address) as mesh:
        rows = [table.tobytes() for table in read_tables(mesh, spec, source)]
    return [losses for _, losses, _ in results], results[0][2], rows


def alone(initial, spec, trainers):
    """The same batches in rank order, in one process, with plain arrays."""
    source, job = spec.source(), spec.job
    blocks = source.blocks("train", job.batch_size)
    dim = row_dim(spec.model)
    embeddings = LocalEmbedding(source.fields.rows, dim, hots=source.fields.hots)
    embeddings.weight.data[...] = np.concatenate(initial)
    model = make_model(spec, source.fields, embeddings)
    dense = [p for name, p in model.named_parameters() if not name.startswith("embeddings")]
    tables = {"params": [embeddings.weight], "lr": job.table_learning_rate}
    optimizer = SGD([{"params": dense}, tables], lr=job.learning_rate)
    losses = [[] for _ in range(trainers)]
    for step in range(STEPS):
        total = {}
        for rank in range(trainers):
            batch = blocks.read(0, step * trainers + rank).samples
            scores = model(batch.dense, batch.ids)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            run_backward([loss], into=total)
            losses[rank].append(float(loss.item()))
        optimizer.param_groups[0]["lr"] = dense_rate(job, spec.rates, step, STEPS)
        optimizer.step({leaf: grad / np.float32(trainers) for leaf, grad in total.items()})
    rows = [embeddings.table(feature).tobytes() for feature in range(source.fields.features)]
    return losses, [p.data.tobytes() for p in dense], rows


def initial_rows(cluster, spec):
    with connect(cluster.address) as mesh:
        return read_tables(mesh, spec, spec.source())


@pytest.mark.parametrize("prefetch_depth", [0, 2])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_trainers_and_servers_equal_one_process(start_cluster, trainers, servers, prefetch_depth):
    spec = variant(prefetch_depth=prefetch_depth)
    cluster = start_cluster(servers, trainers)
    initial = initial_rows(cluster, spec)

    assert together(cluster, spec, trainers) == alone(initial, spec, trainers)


@pytest.mark.parametrize("prefetch_depth", [0, 1])
@pytest.mark.parametrize("lane", ["shm", "tcp", "stream"])
def test_every_lane_gives_the_same_bits(start_cluster, lane, prefetch_depth):
    spec = variant(prefetch_depth=prefetch_depth)
    cluster = start_cluster(2, 2)
    initial = initial_rows(cluster, spec)

    assert together(cluster, spec, 2, lane) == alone(initial, spec, 2)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch_depth", [0, 2])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2, 4])
@pytest.mark.parametrize("lane", ["shm", "tcp", "stream"])
def test_every_size_on_every_lane(start_cluster, lane, trainers, servers, prefetch_depth):
    spec = variant(prefetch_depth=prefetch_depth)
    cluster = start_cluster(servers, trainers)
    initial = initial_rows(cluster, spec)

    assert together(cluster, spec, trainers, lane) == alone(initial, spec, trainers)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_model_equals_one_process(start_cluster, name):
    spec = variant(model={"name": name})
    cluster = start_cluster(2, 2)
    initial = initial_rows(cluster, spec)

    assert together(cluster, spec, 2) == alone(initial, spec, 2)


def test_ddp_around_each_dense_part_gives_the_same_bits(start_cluster):
    cluster = start_cluster(2, 2)
    initial = initial_rows(cluster, BASE)

    assert together(cluster, variant(ddp="dense"), 2) == alone(initial, BASE, 2)


def test_without_ddp_the_models_of_trainers_diverge(start_cluster):
    averaged = together(start_cluster(1, 2), BASE, 2)
    apart = together(start_cluster(1, 2), variant(ddp="none"), 2)

    assert apart[0][0][0] == averaged[0][0][0]
    assert apart[1] != averaged[1]


def test_stale_rows_train_nearly_as_well(start_cluster):
    # Each rank's gradients count in full, so half the rate for two ranks is the same on the whole.
    sync = together(start_cluster(2, 2), variant(), 2)
    stale = together(start_cluster(2, 2), variant(staleness=4, table_learning_rate=1.0), 2)

    assert stale[0][0][0] == sync[0][0][0]
    np.testing.assert_allclose(stale[0], sync[0], atol=0.05)
    assert stale[2] != sync[2]


def test_several_ids_of_a_feature_are_summed_on_both_sides_alike(start_cluster):
    data = DataConfig(shape="criteo", scale=1e-5, multi_hot=True)
    spec = variant(data=data)
    cluster = start_cluster(2, 2)
    initial = initial_rows(cluster, spec)

    losses, dense, rows = together(cluster, spec, 2)
    expected = alone(initial, spec, 2)

    # Gradients of repeated ids are added up in another order than in one matrix.
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    for one, other in zip((*dense, *rows), (*expected[1], *expected[2]), strict=True):
        pair = np.frombuffer(one, np.float32), np.frombuffer(other, np.float32)
        np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-5)
