"""One rank of our side of the DDP benchmark.

Arguments: backend, folder of the store, rank, number of processes.
"""

import sys
from pathlib import Path
from typing import Any, final, get_args

import numpy as np

from gradmesh.benchmarks import resnet
from gradmesh.benchmarks.processes import serve, timed
from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, Module
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


@final
class Training:
    """One model, its data and its optimizer; called, it takes one step.

    Args:
        group: The ranks.
        work: See `gradmesh.benchmarks.ddp.DdpWorkload`, and whether DDP wraps the model.
    """

    def __init__(self, group: ProcessGroup, **work: Any) -> None:
        module = build(work["model"], work["width"])
        size, batch = work["image_size"], work["batch_size"]
        shape = (batch, work["width"]) if work["model"] == "mlp" else (batch, 3, size, size)
        rng = np.random.default_rng(group.rank)
        self._inputs = Tensor(rng.random(shape, dtype=np.float32))
        self._targets = Tensor(np.ones(batch, np.int64))
        self._ddp: DistributedDataParallel | None = None
        if work["wraps"]:
            self._ddp = DistributedDataParallel(
                module,
                process_group=group,
                bucket_cap_mb=work["bucket_mb"],
                gradient_as_bucket_view=work["view"],
                forward_sync_buffers=False,
            )
            self._ddp.set_runtime_stats_sample_rate(1)
        self._model = self._ddp or module
        self._optimizer = optim.SGD(module.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
        self._group = group
        self._exposed: list[float] = []

    def __call__(self, _: int) -> None:
        """Take one step."""
        self._optimizer.zero_grad()
        cross_entropy(self._model(self._inputs), self._targets).backward()
        self._optimizer.step()

    def note(self) -> None:
        """Record how long the last step still communicated after backward."""
        if self._ddp is not None:
            data = self._ddp.logging_data()
            self._exposed.append(data["backward_exposed_comm_time"] / 1e9)

    def overlap(self) -> list[float]:
        """Return the time of communication alone, and the time left after backward by step.

        Collective. The first is a median; the first steps do not count.
        """
        assert self._ddp is not None
        data = self._ddp.logging_data()
        sizes = data.get("rebuilt_bucket_sizes", data["bucket_sizes"]).split(", ")
        buckets = [self._group.empty(int(size) // 4, np.float32) for size in sizes]
        for bucket in buckets:
            bucket[...] = 0

        def communicate(_: int) -> None:
            for work in [self._group.all_reduce(bucket, "avg") for bucket in buckets]:
                work.wait()

        alone = []
        for _ in range(10):
            self._group.barrier().wait()
            alone += timed(communicate, 1)
        return [float(np.median(alone)), *(self._exposed[3:] or self._exposed)]


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
    trainings: dict[str, Training] = {}

    def measure(rounds: int, wraps: bool | None, **work: Any) -> list[float]:
        seconds = []
        # Without a choice both kinds take turns.
        for kind in [*((False, True) if wraps is None else (wraps,))] * rounds:
            training = of_kind(kind, **work)
            group.barrier().wait()
            seconds += timed(training, 1)
            training.note()
        # No rounds: how much of the communication was hidden.
        return seconds if rounds else of_kind(True, **work).overlap()

    def of_kind(wraps: bool, **work: Any) -> Training:
        key = repr(sorted({**work, "wraps": wraps}.items()))
        if key not in trainings:
            trainings[key] = Training(group, wraps=wraps, **work)
        return trainings[key]

    with group:
        serve(measure)


if __name__ == "__main__":
    main()
