"""Tables and trainers for tests in which the number of parameter servers changes."""

import numpy as np

from gradmesh.engine import optim
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.recipe import Initializer

ROWS = 500
IDS = np.arange(ROWS)


def tables_of(mesh):
    """Open a table of each kind."""
    return [
        mesh.table("dense", rows=ROWS, dim=4, optimizer=optim.Adagrad(lr=0.1)),
        mesh.table("hash", dim=4, optimizer=optim.Adam(lr=0.1)),
        mesh.table(
            "evicting",
            dim=2,
            optimizer=optim.Adagrad(lr=0.1),
            eviction=Eviction.lru(),
            max_bytes=4096 * 64,
        ),
        mesh.table(
            "admitting",
            dim=2,
            optimizer=optim.SGD(lr=0.1),
            admission=Admission.frequency(3),
        ),
    ]


class Trainer:
    """A trainer that takes steps over all tables."""

    def __init__(self, cluster, name):
        self.mesh = cluster.connect(name, role="trainer", timeout_s=20.0)
        self.tables = tables_of(self.mesh)
        self.layers = [RemoteEmbedding(table) for table in self.tables]
        self.place = None

    def train(self, steps, reached):
        rank = self.place.rank
        for step in steps:
            rng = np.random.default_rng([step, rank])
            with autograd.step_context(self.mesh, self.place.mark(step)) as ctx:
                loss = None
                for layer in self.layers:
                    part = (layer(rng.integers(0, ROWS, 64)) ** 2).sum()
                    loss = part if loss is None else loss + part
                autograd.backward(ctx, [loss])
                autograd.apply(ctx)
            reached(step)


def grow(cluster, *names):
    for name in names:
        cluster.add_server(name)


def ones_table(mesh):
    return mesh.table(
        "counts",
        dim=2,
        optimizer=optim.SGD(lr=1.0),
        initializer=Initializer.constant(0.0),
    )
