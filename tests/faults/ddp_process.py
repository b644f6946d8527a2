"""One rank that trains under DistributedDataParallel, loses a peer, and continues without it.

Arguments: backend, folder of the stores, rank, world size, timeout in seconds. Prints one JSON line
when the first steps are done, one with the error, and one with the parameters after further steps
in a new generation.
"""

import hashlib
import json
import pathlib
import sys

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP
from gradmesh.engine.optim import SGD
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.process_group import FileStore, connect


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    backend, folder, rank_text, size_text, timeout_text = sys.argv[1:]
    rank, size = int(rank_text), int(size_text)

    def meet(generation: int, rank: int, size: int, timeout_s: float):
        store = pathlib.Path(folder) / str(generation)
        store.mkdir(exist_ok=True)
        return connect(
            FileStore(store),
            backend=backend,
            generation=generation,
            rank=rank,
            world_size=size,
            timeout_s=timeout_s,
        )

    group = meet(1, rank, size, float(timeout_text))
    module = MLP([64, 256, 256, 1], generator=Generator(rank))
    ddp = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.1)
    optimizer = SGD(module.parameters(), lr=0.01)
    rng = np.random.default_rng(rank)

    def step() -> None:
        optimizer.zero_grad()
        (ddp(Tensor(rng.random((8, 64), dtype=np.float32))) ** 2).mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    say(running=True)
    try:
        while True:
            step()
    except (ConnectionError, TimeoutError) as error:
        ranks = list(getattr(error, "ranks", None) or [getattr(error, "rank", None)])
        say(error=type(error).__name__, ranks=ranks)
    group.close()
    group = meet(2, rank - (rank > ranks[0]), size - 1, 20.0)
    ddp.update_process_group(group)
    for _ in range(5):
        step()
    digest = hashlib.sha256(b"".join(p.data.tobytes() for p in module.parameters())).hexdigest()
    say(world=group.size, rank=group.rank, digest=digest)
    group.barrier().wait()
    group.close()


main()
