"""One rank in a process of its own: all-reduces until something breaks, then says what.

Arguments: backend, folder of the store, rank, world size, timeout in seconds. Prints one JSON line
when the first all-reduce is done, and one with the error.
"""

import json
import pathlib
import sys
import threading
import time

import numpy as np

from gradmesh.trainer.process_group import ShmProcessGroup, TcpProcessGroup


class FolderStore:
    """Keys and values as files, each put in place by one rename."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        path = self._folder / key.replace("/", ".")
        path.with_name(path.name + "-new").write_bytes(value)
        path.with_name(path.name + "-new").rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        path = self._folder / key.replace("/", ".")
        deadline = time.monotonic() + timeout_s
        tick = threading.Event()
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(key)
            tick.wait(0.01)
        return path.read_bytes()


def main() -> None:
    backend, folder, rank, size, timeout_s = sys.argv[1:]
    group = {"tcp": TcpProcessGroup, "shm": ShmProcessGroup}[backend].connect(
        FolderStore(pathlib.Path(folder)),
        generation=1,
        rank=int(rank),
        world_size=int(size),
        timeout_s=float(timeout_s),
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
