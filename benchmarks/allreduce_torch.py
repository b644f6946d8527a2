"""One rank of the peer's side of the all-reduce benchmark: torch.distributed with gloo.

Arguments: backend, folder to meet in, rank, number of processes.
"""

import os
import sys

from gradmesh.benchmarks.worker import serve, timed


def main() -> None:
    """Join the group and serve the parent."""
    import torch
    import torch.distributed as dist

    backend, folder, rank, world = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meeting", rank=int(rank), world_size=int(world)
    )

    def measure(count: int, rounds: int) -> list[float]:
        array = torch.zeros(count)
        return timed(lambda _: dist.all_reduce(array), rounds)

    serve(measure)
    # Taking the group down would wait for ranks that have ended already.
    os._exit(0)


if __name__ == "__main__":
    main()
