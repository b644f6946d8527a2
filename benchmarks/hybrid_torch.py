"""One process of the peer's side of the hybrid benchmark: torch RPC, DDP over gloo, one thread.

Arguments: the shape as JSON, a folder to meet in, "trainer" or "server", and its number. A trainer
asks all servers at once, each for all of its tables in one call: the best the peer can do.
"""

import importlib
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from gradmesh.benchmarks.hybrid_shape import LR, VARIANTS, HybridLoad, Shape
from gradmesh.benchmarks.processes import serve

_held: list[Any] = []  # the server's tables; global, because rpc functions are module-level


def pull(ids: Any, offsets: Any) -> Any:
    """Return the pooled rows of this server's tables side by side; runs on the server."""
    import torch

    if offsets is not None:
        return torch.cat([table(ids, offsets) for table in _held], 1)
    columns = ids.shape[1] // len(_held)
    parts = zip(_held, ids.split(columns, 1), strict=True)
    return torch.cat([table(part) for table, part in parts], 1)


def parameters() -> list[Any]:
    """Return references to this server's tables; runs on the server."""
    from torch.distributed import rpc

    module: Any = rpc
    return [module.RRef(table.weight) for table in _held]


def main(plain: str, folder: str, role: str, number: int) -> None:
    """Join the others and serve the parent."""
    import torch
    from torch.distributed import rpc

    # It warns about its own classes in every process, regardless of the filters.
    warnings.showwarning = lambda *args, **kwargs: None
    shape = Shape.from_dict(json.loads(plain))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if role == "server":
        for _ in _tables_of(shape, number):
            # Gradients of a big table are of the rows that were looked up, as ours are.
            table = torch.nn.EmbeddingBag(
                shape.rows, shape.dim, mode="sum", sparse=bool(shape.batch)
            )
            _held.append(table)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group",
            rank=number,
            world_size=shape.trainers,
        )
    module: Any = rpc
    rank = number if role == "trainer" else shape.trainers + number
    module.init_rpc(
        f"{role}-{number}",
        rank=rank,
        world_size=shape.trainers + shape.servers,
        rpc_backend_options=module.TensorPipeRpcBackendOptions(
            init_method=f"file://{folder}/rpc", num_worker_threads=max(4, shape.trainers)
        ),
    )
    if role == "server":
        serve(lambda rounds: [])
    else:
        step = _step(module, shape, number)
        serve(lambda rounds: [second for _ in range(rounds) for second in step()])
    # Its shutdown would wait for processes that have ended already.
    os._exit(0)


def _tables_of(shape: Shape, server: int) -> range:
    return range(server, shape.tables, shape.servers)


def _step(rpc: Any, shape: Shape, rank: int) -> Callable[[], list[float]]:
    """Return a step: it gives the seconds of its parts, and its samples."""
    import torch
    from torch.distributed import autograd, optim
    from torch.nn.parallel import DistributedDataParallel

    servers = [f"server-{number}" for number in range(shape.servers)]
    layers: list[Any] = []
    sizes = shape.sizes
    for width, following in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    held = [ref for name in servers for ref in rpc.rpc_sync(name, parameters)]
    held += [rpc.RRef(parameter) for parameter in model.parameters()]
    made: Any = optim
    optimizer = made.DistributedOptimizer(torch.optim.SGD, held, lr=LR)
    remote: Any = autograd
    loads = [shape.load(rank, variant) for variant in range(VARIANTS)]
    wanted = [_wanted(load, shape) for load in loads]
    targets = [torch.from_numpy(load.targets) for load in loads]
    done = 0

    def step() -> list[float]:
        nonlocal done
        place, now = done % VARIANTS, time.perf_counter
        begun = now()
        with remote.context() as context:
            asked = [
                rpc.rpc_async(name, pull, args=arguments)
                for name, arguments in zip(servers, wanted[place], strict=True)
            ]
            rows = torch.cat([answer.wait() for answer in asked], 1)
            looked_up = now()
            loss = _loss(model, rows, loads[place], targets[place], shape)
            scored = now()
            remote.backward(context, [loss])
            returned = now()
            optimizer.step(context)
        ended = now()
        done += 1
        parts = [looked_up - begun, scored - looked_up, returned - scored, ended - returned]
        return [*parts, ended - begun, loads[place].samples, 0, 0]

    return step


def _wanted(load: HybridLoad, shape: Shape) -> list[tuple[Any, Any]]:
    """Return the arguments of each server's call."""
    import torch

    if load.offsets is not None:
        bags = torch.from_numpy(load.ids), torch.from_numpy(load.offsets)
        return [bags] * shape.servers
    columns = [list(_tables_of(shape, server)) for server in range(shape.servers)]
    return [(torch.from_numpy(load.ids[:, own].copy()), None) for own in columns]


def _loss(model: Any, rows: Any, load: HybridLoad, targets: Any, shape: Shape) -> Any:
    import torch

    functional = torch.nn.functional
    if load.dense is None:
        return functional.cross_entropy(model(rows.reshape(-1, shape.inputs)), targets)
    scores = model(torch.cat([torch.from_numpy(load.dense), rows], 1)).reshape(-1)
    return functional.binary_cross_entropy_with_logits(scores, targets)


if __name__ == "__main__":
    # Servers find their functions by the name of the module, which __main__ is not.
    importlib.import_module("gradmesh.benchmarks.hybrid_torch").main(
        sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    )
