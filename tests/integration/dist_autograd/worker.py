"""A worker process of the tests: serves until its standard input closes."""

import sys

import gradmesh as gm
from tests.integration.dist_autograd import functions, hybrid


def main(address: str, rank: int, world_size: int) -> None:
    functions.rank = rank
    assert hybrid.TRAINERS
    gm.rpc.init(f"worker{rank}", coordinator=address, rank=rank, world_size=world_size)
    print("ready", flush=True)
    sys.stdin.read()
    gm.rpc.shutdown(graceful=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
