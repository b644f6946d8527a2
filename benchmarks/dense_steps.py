"""The steps of the dense benchmark, ours and torch's; torch is imported only to compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmesh.benchmarks import resnet
from gradmesh.benchmarks.report import BadOption
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


def our_mlp(sizes: Sequence[int], batch: int, optimizer_name: str) -> Callable[[], None]:
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


def our_embedding_bag() -> Callable[[], None]:
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


def our_resnet50(batch: int = 4) -> Callable[[], None]:
    """Return forward and backward of a ResNet-50 on images of 224 x 224."""
    model = resnet.resnet50(generator=Generator(0))
    x = autograd.randn(batch, 3, 224, 224, generator=Generator(1))
    y = autograd.arange(batch)

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return step


class TorchMissing(BadOption):
    """Torch, the peer of the comparison, is not installed."""


def load_torch(threads: int) -> Any:
    """Return torch with its thread count set.

    Raises:
        TorchMissing: If torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise TorchMissing("--against torch needs torch: pip install torch==2.13.0") from error
    torch.set_num_threads(threads)
    return torch


def torch_mlp(
    torch: Any, sizes: Sequence[int], batch: int, optimizer_name: str
) -> Callable[[], None]:
    """Return a step of an MLP: forward, loss, backward, optimizer."""
    layers: list[Any] = []
    for m, n in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(m, n), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01)
    x = torch.randn(batch, sizes[0])
    y = torch.from_numpy(labels(batch))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()

    return step


def torch_embedding_bag(torch: Any) -> Callable[[], None]:
    """Return a step of a big table: pooled lookup, backward, sparse Adagrad."""
    layer = torch.nn.EmbeddingBag(
        BAG_ROWS,
        BAG_DIM,
        mode="sum",
        sparse=True,
        _weight=torch.zeros(BAG_ROWS, BAG_DIM),
    )
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.01)
    shape = (BAG_BATCH, BAG_LENGTH)
    ids = torch.from_numpy(zipf_ids(BAG_ROWS, shape))
    seed = torch.ones(BAG_BATCH, BAG_DIM)

    def step() -> None:
        optimizer.zero_grad()
        layer(ids).backward(seed)
        optimizer.step()

    return step


def torch_resnet50(torch: Any, batch: int = 4) -> Callable[[], None]:
    """Return forward and backward of a ResNet-50 on images of 224 x 224."""
    model = torch_resnet50_model(torch)
    x = torch.randn(batch, 3, 224, 224)
    y = torch.arange(batch)

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()

    return step


def torch_resnet50_model(torch: Any) -> Any:
    """Return a ResNet-50 whose parameters come in the order of ours."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, channels: int, planes: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, planes, 1, bias=False),
                nn.BatchNorm2d(planes),
                nn.ReLU(inplace=True),
                nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
                nn.BatchNorm2d(planes),
                nn.ReLU(inplace=True),
                nn.Conv2d(planes, planes * 4, 1, bias=False),
                nn.BatchNorm2d(planes * 4),
            )
            self.relu = nn.ReLU(inplace=True)
            self.side = nn.Identity()
            if stride != 1 or channels != planes * 4:
                self.side = nn.Sequential(
                    nn.Conv2d(channels, planes * 4, 1, stride, bias=False),
                    nn.BatchNorm2d(planes * 4),
                )

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.side(x))

    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for planes, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Block(channels, planes, 1 if number else stride))
            channels = planes * 4
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers)
