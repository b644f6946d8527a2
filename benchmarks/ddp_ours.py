"""One rank of our side of the DDP benchmark.

Arguments: backend, folder of the store, rank, number of processes.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gradmesh.benchmarks.worker import serve, timed
from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, Module, resnet
from gradmesh.engine.nn.functional import cross_entropy
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.process_group import Backend, FileStore, ProcessGroup, connect

_LAYERS = 10


def build(model: str, width: int) -> Module:
    """Return a model with random parameters."""
    generator = Generator(0)
    if model == "mlp":
        return MLP([width] * (_LAYERS + 1), generator=generator)
    made: Module = getattr(resnet, model)(generator=generator)
    return made


def make_step(group: ProcessGroup, **work: Any) -> Callable[[int], object]:
    """Return what one iteration does."""
    module = build(work["model"], work["width"])
    size, batch = work["image_size"], work["batch_size"]
    shape = (batch, work["width"]) if work["model"] == "mlp" else (batch, 3, size, size)
    rng = np.random.default_rng(group.rank)
    inputs = Tensor(rng.random(shape, dtype=np.float32))
    targets = Tensor(np.ones(batch, np.int64))
    model = module
    if work["wraps"]:
        model = DistributedDataParallel(
            module,
            process_group=group,
            bucket_cap_mb=work["bucket_mb"],
            gradient_as_bucket_view=work["view"],
            forward_sync_buffers=False,
        )
    optimizer = optim.SGD(module.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)

    def step(_: int) -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def main() -> None:
    """Join the group and serve the parent."""
    backend, folder, rank, world = sys.argv[1:]
    known: dict[str, Backend] = {name: name for name in get_args(Backend)}
    group = connect(
        FileStore(Path(folder)),
        backend=known[backend],
        generation=1,
        rank=int(rank),
        world_size=int(world),
        timeout_s=120,
    )
    steps: dict[str, Callable[[int], object]] = {}

    def measure(rounds: int, wraps: bool | None, **work: Any) -> list[float]:
        seconds = []
        for _ in range(rounds):
            # Without a choice both kinds take turns.
            for kind in (False, True) if wraps is None else (wraps,):
                key = repr(sorted({**work, "wraps": kind}.items()))
                if key not in steps:
                    steps[key] = make_step(group, wraps=kind, **work)
                group.barrier().wait()
                seconds += timed(steps[key], 1)
        return seconds

    with group:
        serve(measure)


if __name__ == "__main__":
    main()
