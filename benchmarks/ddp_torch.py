"""One rank of the peer's side of the DDP benchmark: torch's DDP over gloo, with the mlp.

Arguments: backend, folder to meet in, rank, number of processes.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from gradmesh.benchmarks.processes import serve, timed

_LAYERS = 10


def make_step(**work: Any) -> Callable[[int], object]:
    """Return what one iteration does."""
    import torch
    import torch.distributed as dist
    from torch import nn

    width = work["width"]
    torch.manual_seed(0)
    layers: list[Any] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model: Any = nn.Sequential(*layers[:-1])
    if work["wraps"]:
        model = nn.parallel.DistributedDataParallel(
            model,
            bucket_cap_mb=work["bucket_mb"],
            gradient_as_bucket_view=work["view"],
            broadcast_buffers=False,
        )
    torch.manual_seed(dist.get_rank())
    inputs = torch.rand(work["batch_size"], width)
    targets = torch.ones(work["batch_size"], dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
    loss = nn.CrossEntropyLoss()

    def step(_: int) -> None:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def main() -> None:
    """Join the group and serve the parent."""
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", FutureWarning)
    backend, folder, rank, world = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meeting", rank=int(rank), world_size=int(world)
    )
    steps: dict[str, Callable[[int], object]] = {}

    def measure(rounds: int, wraps: bool | None, **work: Any) -> list[float]:
        seconds = []
        for _ in range(rounds):
            # Without a choice both kinds take turns.
            for kind in (False, True) if wraps is None else (wraps,):
                key = repr(sorted({**work, "wraps": kind}.items()))
                if key not in steps:
                    steps[key] = make_step(wraps=kind, **work)
                dist.barrier()
                seconds += timed(steps[key], 1)
        return seconds

    serve(measure)
    # Taking the group down would wait for ranks that have ended already.
    os._exit(0)


if __name__ == "__main__":
    main()
