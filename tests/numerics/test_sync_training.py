"""N trainers and M servers equal one process that runs the N batches in rank order."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest

from gradmesh.engine.autograd import as_tensor, run_backward
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.engine.optim import SGD
from gradmesh.trainer.data import DataConfig
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.model import create_tables, make_model
from gradmesh.trainer.job.run import TrainingRun
from gradmesh.trainer.job.spec import JobSpec, dense_rate
from gradmesh.trainer.models import LocalEmbedding, ModelConfig
from gradmesh.trainer.process_group import Endpoint

ROWS = (50, 20, 7)
CONFIG = JobConfig(
    steps=6,
    batch_size=32,
    optimizer="sgd",
    table_optimizer="sgd",
    table_learning_rate=5.0,
    learning_rate=0.5,
    eval_batches=5,
    log_every=2,
    seed=3,
)
JOB_SPEC = JobSpec(
    job=CONFIG,
    data=DataConfig(rows=ROWS, dense_features=4),
    model=ModelConfig(dim=8, bottom=(8,), top=(16, 8)),
)


@dataclass
class Result:
    """The result of a run, as bytes where bits matter."""

    losses: list[list[float]]
    parameters: dict[str, bytes]
    tables: list[bytes] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def read_tables(mesh):
    tables = create_tables(mesh, JOB_SPEC, JOB_SPEC.source().fields, CONFIG.steps)
    return [table.lookup(np.arange(rows)) for table, rows in zip(tables, ROWS, strict=True)]


def parameters_of(model):
    named = model.named_parameters()
    return {name: p.data.tobytes() for name, p in named if not name.startswith("embeddings")}


def train_distributed(cluster, trainers):
    source = JOB_SPEC.source()
    meshes = [cluster.connect(f"trainer-{rank}", "trainer") for rank in range(trainers)]

    def train(mesh):
        place = mesh.connection.join_trainers(20)
        with mesh, TrainingRun(mesh, place, JOB_SPEC, source, Endpoint()) as run:
            losses = [run.take_step(step) for step in range(CONFIG.steps)]
            return place.rank, losses, parameters_of(run.model), run.finish()

    with ThreadPoolExecutor(trainers) as pool:
        results = sorted(pool.map(train, meshes, timeout=120), key=lambda result: result[0])
    assert all(result[2] == results[0][2] for result in results)
    with cluster.connect("reader", "client") as reader:
        rows = [table.tobytes() for table in read_tables(reader)]
    return Result([losses for _, losses, _, _ in results], results[0][2], rows, results[0][3])


def train_alone(initial_tables, trainers):
    """Run the ranks' batches one after another in one process, with plain arrays."""
    source = JOB_SPEC.source()
    blocks = source.blocks("train", CONFIG.batch_size)
    embeddings = LocalEmbedding(ROWS, JOB_SPEC.model.dim)
    embeddings.weight.data[...] = np.concatenate(initial_tables)
    model = make_model(JOB_SPEC, source.fields, embeddings)
    dense = [p for name, p in model.named_parameters() if not name.startswith("embeddings")]
    optimizer = SGD(
        [{"params": dense}, {"params": [embeddings.weight], "lr": CONFIG.table_learning_rate}],
        lr=CONFIG.learning_rate,
    )
    losses = [[] for _ in range(trainers)]
    for step in range(CONFIG.steps):
        total = {}
        for rank in range(trainers):
            batch = blocks.read(0, step * trainers + rank).samples
            scores = model(batch.dense, batch.ids)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            run_backward([loss], into=total)
            losses[rank].append(float(loss.item()))
        mean = {leaf: grad / np.float32(trainers) for leaf, grad in total.items()}
        optimizer.param_groups[0]["lr"] = dense_rate(CONFIG, JOB_SPEC.rates, step, CONFIG.steps)
        optimizer.step(mean)
    rows = [embeddings.table(feature).tobytes() for feature in range(len(ROWS))]
    return Result(losses, parameters_of(model), rows)


@pytest.mark.parametrize(
    ("trainers", "servers"), [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (4, 2)]
)
def test_cluster_equals_one_process_bit_for_bit(start_cluster, trainers, servers):
    cluster = start_cluster(servers, trainers)
    initial = read_tables(cluster.connect("early-reader", "client"))

    alone = train_alone(initial, trainers)
    together = train_distributed(cluster, trainers)

    assert together.losses == alone.losses
    assert together.parameters == alone.parameters
    assert together.tables == alone.tables
    assert together.tables != [table.tobytes() for table in initial]


def test_number_of_servers_changes_no_figure(start_cluster):
    results = [train_distributed(start_cluster(servers, 2), 2) for servers in (1, 2)]

    moving = {"seconds", "samples_per_s", "bytes_moved"}
    figures = [{k: v for k, v in r.figures.items() if k not in moving} for r in results]
    assert figures[0] == figures[1]
    assert set(figures[0]) == {
        "auc",
        "best_auc",
        "log_loss",
        "best_log_loss",
        "normalised_entropy",
        "calibration",
        "steps",
        "samples",
        "dense_crc32",
    }


def test_second_run_on_the_same_cluster_begins_from_the_initial_rows(start_cluster):
    cluster = start_cluster(2, 1)

    first = train_distributed(cluster, 1)
    second = train_distributed(cluster, 1)

    assert second.losses == first.losses
    assert second.tables == first.tables
