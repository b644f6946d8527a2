"""One rank of an MPI world, started by mpiexec, that runs commands of the test's process.

Arguments: folder with the address of the test's process and the key to it. Commands are (name,
arguments); answers are ("ok", value) or ("error", the exception).
"""

import sys
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
from mpi4py import MPI

from gradmesh.trainer.process_group import FileStore, MpiProcessGroup


class Rank:
    """The groups and works of this rank, by number."""

    def __init__(self):
        self.groups = {}
        self.works = {}

    def connect(self, folder, rank, size, timeout_s):
        group = MpiProcessGroup.connect(
            FileStore(Path(folder)), rank=rank, world_size=size, timeout_s=timeout_s
        )
        return self._keep(group)

    def sub_group(self, group, ranks):
        part = self.groups[group].sub_group(ranks)
        return None if part is None else self._keep(part)

    def _keep(self, group):
        self.groups[id(group)] = group
        return id(group), group.rank, group.size

    def call(self, group, name, arguments):
        """Begin a collective; return the number of its work."""
        copies = _writable(arguments)
        work = getattr(self.groups[group], name)(*copies)
        self.works[id(work)] = (work, copies)
        return id(work)

    def wait(self, work, timeout_s):
        self.works[work][0].wait(timeout_s)
        return self.works[work][1]

    def ask(self, work, name):
        return getattr(self.works[work][0], name)()

    def end(self, group, name):
        getattr(self.groups[group], name)()

    def get(self, group, name):
        return getattr(self.groups[group], name)


def _writable(value):
    if isinstance(value, np.ndarray):
        return value if not value.flags.writeable else value.copy(order="K")
    return [_writable(item) for item in value] if isinstance(value, list | tuple) else value


def main():
    folder = Path(sys.argv[1])
    connection = Client(str(folder / "door"), authkey=(folder / "key").read_bytes())
    connection.send(MPI.COMM_WORLD.Get_rank())
    rank = Rank()
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            break
        try:
            answer = ("ok", getattr(rank, name)(*arguments))
        except Exception as error:
            answer = ("error", (type(error).__name__, str(error), dict(vars(error))))
        connection.send(answer)


main()
