"""Our side of the dense benchmark; `dense_torch` has the same workloads under the same names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmesh.benchmarks import resnet
from gradmesh.engine import autograd, nn, optim
from gradmesh.engine.backend import Generator

BAG_ROWS = 1_000_000
BAG_DIM = 64
BAG_BATCH = 2048
BAG_LENGTH = 26


def zipf_ids(rows: int, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Return ids below rows with the skew of real features, int64."""
    drawn = np.random.default_rng(seed).zipf(1.2, size=shape)
    # Multiply by a prime, so that frequent ids are not neighbours in memory.
    return (drawn * 7919) % rows


def labels(batch: int) -> Any:
    """Return 0 and 1 in turn, float32 [batch, 1]."""
    return (np.arange(batch) % 2).astype(np.float32).reshape(-1, 1)


def mlp(sizes: Sequence[int], batch: int, optimizer_name: str) -> Callable[[], None]:
    """Return a step of an MLP: forward, loss, backward, optimizer."""
    model = nn.MLP(sizes, generator=Generator(0))
    optimizer = getattr(optim, optimizer_name)(model.parameters(), lr=0.01)
    x = autograd.randn(batch, sizes[0], generator=Generator(1))
    y = autograd.from_numpy(labels(batch))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()

    return step


def embedding_bag() -> Callable[[], None]:
    """Return a step of a big table: pooled lookup, backward, sparse Adagrad."""
    table = np.zeros((BAG_ROWS, BAG_DIM), dtype=np.float32)
    layer = nn.EmbeddingBag(
        BAG_ROWS, BAG_DIM, mode="sum", sparse=True, _weight=autograd.from_numpy(table)
    )
    optimizer = optim.Adagrad(layer.parameters(), lr=0.01)
    ids = autograd.from_numpy(zipf_ids(BAG_ROWS, (BAG_BATCH, BAG_LENGTH)))
    seed = autograd.ones(BAG_BATCH, BAG_DIM)

    def step() -> None:
        optimizer.zero_grad()
        layer(ids).backward(seed)
        optimizer.step()

    return step


def resnet50(batch: int = 4) -> Callable[[], None]:
    """Return forward and backward of a ResNet-50 on images of 224 x 224."""
    model = resnet.resnet50(generator=Generator(0))
    x = autograd.randn(batch, 3, 224, 224, generator=Generator(1))
    y = autograd.arange(batch)

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return step
