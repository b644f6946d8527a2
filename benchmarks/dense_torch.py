"""Torch's side of the dense benchmark; torch is imported only when asked to compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from gradmesh.benchmarks import dense_ours as load


class TorchMissing(RuntimeError):
    """Report that there is no torch to compare with."""


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


def mlp(torch: Any, sizes: Sequence[int], batch: int, optimizer_name: str) -> Callable[[], None]:
    """Return a step of an MLP: forward, loss, backward, optimizer."""
    layers: list[Any] = []
    for m, n in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(m, n), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01)
    x = torch.randn(batch, sizes[0])
    y = torch.from_numpy(load.labels(batch))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()

    return step


def embedding_bag(torch: Any) -> Callable[[], None]:
    """Return a step of a big table: pooled lookup, backward, sparse Adagrad."""
    layer = torch.nn.EmbeddingBag(
        load.BAG_ROWS,
        load.BAG_DIM,
        mode="sum",
        sparse=True,
        _weight=torch.zeros(load.BAG_ROWS, load.BAG_DIM),
    )
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.01)
    shape = (load.BAG_BATCH, load.BAG_LENGTH)
    ids = torch.from_numpy(load.zipf_ids(load.BAG_ROWS, shape))
    seed = torch.ones(load.BAG_BATCH, load.BAG_DIM)

    def step() -> None:
        optimizer.zero_grad()
        layer(ids).backward(seed)
        optimizer.step()

    return step


def resnet50(torch: Any, batch: int = 4) -> Callable[[], None]:
    """Return forward and backward of a ResNet-50 on images of 224 x 224."""
    model = resnet50_model(torch)
    x = torch.randn(batch, 3, 224, 224)
    y = torch.arange(batch)

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()

    return step


def resnet50_model(torch: Any) -> Any:
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
