"""MPI for the conformance suite: real ranks under mpiexec, controlled by the test's process.

An MPI process has one rank, so the groups that tests see are proxies: arrays are sent to the rank
that owns the group, and the results return with the wait for the work.
"""

import builtins
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np

from gradmesh.trainer import errors

_BIN = Path(sys.executable).parent
_MPIEXEC = shutil.which("mpiexec", path=f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}")


def why_not():
    """Return why MPI cannot be tested here, or None."""
    if importlib.util.find_spec("mpi4py") is None or _MPIEXEC is None:
        return "mpi4py and mpiexec are not installed: make parity-setup"
    return None


class World:
    """Processes under mpiexec, as many as ranks."""

    def __init__(self, size):
        self._folder = Path(tempfile.mkdtemp(prefix="gradmesh-mpi-"))
        key = secrets.token_bytes(16)
        (self._folder / "key").write_bytes(key)
        command = [_MPIEXEC, "-n", str(size), sys.executable]
        command += [str(Path(__file__).with_name("mpi_rank.py")), str(self._folder)]
        with Listener(str(self._folder / "door"), "AF_UNIX", authkey=key) as door:
            door._listener._socket.settimeout(1)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            found = [self._accept(door) for _ in range(size)]
        self._ranks = dict(sorted((connection.recv(), connection) for connection in found))
        self._generation = 0

    def _accept(self, door):
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            try:
                return door.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    break
        self._process.kill()
        code = self._process.wait(10)
        raise AssertionError(f"mpiexec ended with {code} before its ranks came; see its errors")

    def next_folder(self):
        """Return a fresh folder for a store."""
        self._generation += 1
        folder = self._folder / str(self._generation)
        folder.mkdir()
        return str(folder)

    def ask(self, rank, name, *arguments):
        """Run a command on a rank; return its answer or raise its error."""
        connection = self._ranks[rank]
        connection.send((name, arguments))
        if not connection.poll(50):
            raise AssertionError(f"MPI rank {rank} does not answer")
        verdict, answer = connection.recv()
        if verdict == "error":
            raise _error(*answer)
        return answer

    def close(self):
        for connection in self._ranks.values():
            connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        shutil.rmtree(self._folder)


def _error(name, text, members):
    kind = getattr(errors, name, None) or getattr(builtins, name)
    error = kind.__new__(kind, text)
    error.args = (text,)
    vars(error).update(members)
    return error


class MpiGroup:
    """A group of one rank, as the test's process sees it."""

    backend = "mpi"

    def __init__(self, world, place, number, rank, size):
        self._world = world
        self._place = place
        self._number = number
        self.rank = rank
        self.size = size

    @classmethod
    def connect(cls, world, folder, rank, size, timeout_s):
        return cls(world, rank, *world.ask(rank, "connect", folder, rank, size, timeout_s))

    @property
    def bytes_moved(self):
        return self._world.ask(self._place, "get", self._number, "bytes_moved")

    def sub_group(self, ranks):
        found = self._world.ask(self._place, "sub_group", self._number, ranks)
        return None if found is None else MpiGroup(self._world, self._place, *found)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def abort(self):
        self._world.ask(self._place, "end", self._number, "abort")

    def close(self):
        self._world.ask(self._place, "end", self._number, "close")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getattr__(self, name):
        def call(*arguments):
            arguments = [list(a) if _is_list(name, i, a) else a for i, a in enumerate(arguments)]
            work = self._world.ask(self._place, "call", self._number, name, arguments)
            return MpiWork(self._world, self._place, work, arguments)

        return call


def _is_list(name, position, value):
    """Return whether an argument is a list with one array for each rank."""
    lists = {"all_gather": (0,), "reduce_scatter": (1,), "all_to_all": (0, 1), "gather": (0,)}
    where = {**lists, "scatter": (1,)}.get(name, ())
    return position in where and value is not None


class MpiWork:
    def __init__(self, world, place, number, arguments):
        self._world = world
        self._place = place
        self._number = number
        self._arguments = arguments

    def wait(self, timeout_s=None):
        _copy_back(self._world.ask(self._place, "wait", self._number, timeout_s), self._arguments)

    def is_done(self):
        return self._world.ask(self._place, "ask", self._number, "is_done")

    def exception(self):
        return self._world.ask(self._place, "ask", self._number, "exception")


def _copy_back(results, arguments):
    for result, argument in zip(results, arguments, strict=True):
        if isinstance(argument, list):
            _copy_back(result, argument)
        elif isinstance(argument, np.ndarray) and argument.flags.writeable:
            argument[...] = result
