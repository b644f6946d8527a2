"""One MPI rank that trains rows of the table of exactness and prints the results as JSON.

Arguments: folder of the store, names of the rows. To be started by mpiexec.
"""

import json
import sys
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[2]))

from gradmesh.trainer.process_group import FileStore, connect
from tests.numerics.test_ddp_exact import digest, table, train


def main():
    folder, *names = sys.argv[1:]
    cases = {case.id: case.values[0] for case in table()}
    world = MPI.COMM_WORLD
    with connect(
        FileStore(Path(folder)),
        generation=1,
        rank=world.Get_rank(),
        world_size=world.Get_size(),
        timeout_s=60,
        backend="mpi",
    ) as group:
        found = {name: digest(train(group, cases[name])) for name in names}
        # In one piece: mpiexec interleaves the output of ranks.
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        group.barrier().wait()


main()
