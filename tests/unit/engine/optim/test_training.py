"""Whole training runs: the same bits on every run and with any number of threads."""

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import backend, nn, optim
from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import Generator


class Model(nn.Module):
    """One layer of each kind that sums: products, patches, channels, bags."""

    def __init__(self) -> None:
        super().__init__()
        chance = Generator(0)
        self.image = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, generator=chance), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.bag = nn.EmbeddingBag(40, 16, mode="sum", sparse=True, generator=chance)
        # 600 x 272 x 128 multiplications: enough for the product to be cut into blocks.
        self.top = nn.MLP([16 + 4 * 64, 128, 1], generator=chance)

    def forward(self, image: Any, ids: Any) -> Any:
        dense = self.image(image).flatten(1)
        return self.top(ops.cat([dense, self.bag(ids)], dim=1))


def train() -> str:
    """Return a digest of all parameters after three steps."""
    rng = np.random.default_rng(0)
    model = Model()
    optimizer = optim.Adagrad(model.parameters(), lr=0.05)
    for _ in range(3):
        image = ag.tensor(rng.normal(size=(600, 2, 8, 8)).astype(np.float32))
        ids = ag.tensor(rng.integers(0, 40, (600, 5)))
        target = ag.tensor(rng.integers(0, 2, (600, 1)).astype(np.float32))
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(image, ids), target).backward()
        optimizer.step()
    digest = hashlib.sha256()
    for param in model.parameters():
        digest.update(param.data.tobytes())
    return digest.hexdigest()


def test_bits_do_not_depend_on_run_and_threads() -> None:
    found = []
    try:
        for threads in (1, 1, 2, 3):
            backend.set_num_threads(threads)
            found.append(train())
    finally:
        backend.set_num_threads(1)

    assert len(set(found)) == 1


@pytest.mark.parametrize("threads", ["1", "2"])
def test_bits_are_those_of_a_process_with_other_settings(threads: str) -> None:
    settings = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    code = f"import runpy; print(runpy.run_path({__file__!r})['train']())"

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert done.stdout.strip() == train()
