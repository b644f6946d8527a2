"""The same model in torch, from the same weights, has the same loss curve."""

import itertools

import numpy as np
import pytest

from gradmesh.trainer.data import DataConfig
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.model import create_tables
from gradmesh.trainer.job.run import TrainingRun
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models import ModelConfig
from gradmesh.trainer.process_group import Endpoint

torch = pytest.importorskip("torch")

STEPS = 200
ROWS = (200, 100, 50, 20)
JOB_SPEC = JobSpec(
    job=JobConfig(
        steps=STEPS,
        batch_size=64,
        learning_rate=0.2,
        final_learning_rate=0.2,
        optimizer="sgd",
        table_optimizer="sgd",
        table_learning_rate=2.0,
        eval_batches=2,
        log_every=1000,
    ),
    data=DataConfig(rows=ROWS, dense_features=5),
    model=ModelConfig(dim=8, bottom=(16,), top=(32, 16)),
)


class Twin(torch.nn.Module):
    """A typical DLRM in torch: EmbeddingBag, bottom and top MLP, dot interaction."""

    def __init__(self, tables):
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag.from_pretrained(torch.tensor(t), freeze=False, mode="sum")
            for t in tables
        )
        sizes, features = JOB_SPEC.model, len(ROWS) + 1
        self.bottom = self._mlp(5, *sizes.bottom, sizes.dim)
        self.top = self._mlp(features * (features - 1) // 2 + sizes.dim, *sizes.top, 1)

    @staticmethod
    def _mlp(*widths):
        return torch.nn.ModuleList(torch.nn.Linear(m, n) for m, n in itertools.pairwise(widths))

    def forward(self, dense, ids):
        vector = dense
        for layer in self.bottom:
            vector = torch.relu(layer(vector))
        rows = [table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)]
        every = torch.stack([vector, *rows], 1)
        products = every @ every.transpose(1, 2)
        lower, upper = torch.tril_indices(every.shape[1], every.shape[1], -1)
        out = torch.cat([vector, products[:, lower, upper]], 1)
        for layer in self.top[:-1]:
            out = torch.relu(layer(out))
        return self.top[-1](out).reshape(-1)


def train_twin(twin, source):
    dense = [p for name, p in twin.named_parameters() if not name.startswith("tables")]
    job = JOB_SPEC.job
    optimizer = torch.optim.SGD(
        [
            {"params": dense, "lr": job.learning_rate},
            {"params": twin.tables.parameters(), "lr": job.table_learning_rate},
        ]
    )
    losses = []
    with source.blocks("train", job.batch_size) as blocks:
        for step in range(STEPS):
            batch = blocks.read(0, step).samples
            scores = twin(torch.from_numpy(batch.dense), torch.from_numpy(batch.ids))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                scores, torch.from_numpy(batch.labels)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.timeout(600)
def test_loss_curve_equals_torch(make_cluster):
    # More threads than cores cost more than such small layers do.
    torch.set_num_threads(1)
    cluster = make_cluster(parameter_servers=2, trainers=1)
    source = JOB_SPEC.source()
    mesh = cluster.connect("trainer-0", role="trainer")
    tables = create_tables(mesh, JOB_SPEC, source.fields, STEPS)
    twin = Twin([t.lookup(np.arange(n)) for t, n in zip(tables, ROWS, strict=True)])
    place = mesh.connection.join_trainers(20)

    with TrainingRun(mesh, place, JOB_SPEC, source, Endpoint()) as run:
        ours = {n: torch.tensor(p.data) for n, p in run.model.named_parameters()}
        state = {name.replace(".layers", ""): value for name, value in ours.items()}
        assert not twin.load_state_dict(state, strict=False).unexpected_keys
        losses = [run.take_step(step) for step in range(STEPS)]

    np.testing.assert_allclose(losses, train_twin(twin, source), atol=1e-4)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.02
