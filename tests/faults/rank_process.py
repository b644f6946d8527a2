"""One rank in a process of its own: all-reduces until an error, then prints it.

Arguments: backend, folder of the store, rank, world size, timeout in seconds. Prints one JSON line
when the first all-reduce is done, and one with the error.
"""

import json
import pathlib
import sys

import numpy as np

from gradmesh.trainer.process_group import Endpoint, FileStore, ShmProcessGroup, TcpProcessGroup


def main() -> None:
    backend, folder, rank, size, timeout_s = sys.argv[1:]
    options = {}
    if backend == "tcp+shm":
        # Simulate hosts with two ranks each.
        options["endpoint"] = Endpoint(host=f"host {int(rank) // 2}")
    kind = ShmProcessGroup if backend == "shm" else TcpProcessGroup
    group = kind.connect(
        FileStore(pathlib.Path(folder)),
        generation=1,
        rank=int(rank),
        world_size=int(size),
        timeout_s=float(timeout_s),
        **options,
    )
    array = group.empty(1_000_000, np.float32)
    array[...] = 0
    group.all_reduce(array).wait()
    print(json.dumps({"running": True}), flush=True)
    try:
        while True:
            group.all_reduce(array).wait()
    except (ConnectionError, TimeoutError) as error:
        ranks = getattr(error, "ranks", None) or [getattr(error, "rank", None)]
        print(json.dumps({"error": type(error).__name__, "ranks": list(ranks)}), flush=True)
    group.close()


main()
