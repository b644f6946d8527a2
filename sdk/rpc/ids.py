"""Names of values, of references to them, and of workers; each worker counts its own."""

import os
import threading
from dataclasses import dataclass
from struct import unpack
from typing import NamedTuple, final

from gradmesh.protos.common.v1 import value_pb2, worker_pb2
from gradmesh.protos.limits import check_name


class WorkerId(NamedTuple):
    """One process: a restarted one is another.

    Args:
        name: Unique in the mesh.
        incarnation: Grows with each start; 0 where it is not known.
    """

    name: str
    incarnation: int = 0

    def proto(self) -> worker_pb2.WorkerId:
        """Return the wire message."""
        return worker_pb2.WorkerId(name=self.name, incarnation=self.incarnation)


class GlobalId(NamedTuple):
    """Name of a value (RRefId) or of one reference to it (ForkId).

    Args:
        worker: Who counted it.
        incarnation: Of that worker.
        counter: Its count.
    """

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"GloballyUniqueId(created_on={self.worker}, local_id={self.counter})"


@final
class IdCounter:
    """Unique names of the values and references of one worker.

    Their numbers are random, so that only workers that were given a reference can use its value.

    Args:
        me: The worker.
    """

    def __init__(self, me: WorkerId) -> None:
        self._me = me
        # Guards _numbers. Reentrant: the garbage collector may run code of references in it.
        self._lock = threading.RLock()
        self._numbers = CallIds()

    def new(self) -> GlobalId:
        """Return a new name."""
        with self._lock:
            return GlobalId(self._me.name, self._me.incarnation, self._numbers.next())


@final
class CallIds:
    """Numbers of calls that other workers cannot guess, so that they cannot forge replies.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []

    def next(self) -> int:
        """Return a random number of 63 bits, not 0."""
        if not self._ids:
            # Many at once: a system call for each would cost 1 % of a small call.
            self._ids = [one >> 1 or 1 for one in unpack("256Q", os.urandom(2048))]
        return self._ids.pop()


def worker_of(proto: worker_pb2.WorkerId) -> WorkerId:
    """Return a worker from its wire message.

    Raises:
        InvalidRequest: Its name is not valid.
    """
    name = check_name("worker", proto.name) if proto.name else ""
    return WorkerId(name, proto.incarnation)


def key_of(ref: value_pb2.RemoteRef) -> GlobalId:
    """Return the name of a value."""
    return GlobalId(ref.creator, ref.incarnation, ref.counter)


def fork_of(ref: value_pb2.RemoteRef) -> GlobalId:
    """Return the name of a reference; the creator's own reference has the name of the value."""
    return fork_key(ref.fork) if ref.HasField("fork") else key_of(ref)


def fork_key(fork: value_pb2.ForkId) -> GlobalId:
    """Return the name of a reference."""
    return GlobalId(fork.worker.name, fork.worker.incarnation, fork.counter)


def fork_proto(fork: GlobalId) -> value_pb2.ForkId:
    """Return the name of a reference as a wire message."""
    worker = worker_pb2.WorkerId(name=fork.worker, incarnation=fork.incarnation)
    return value_pb2.ForkId(worker=worker, counter=fork.counter)


@final
@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Name, rank and incarnation of a worker.

    Args:
        name: Unique in the mesh.
        rank: Its rank among the workers, if it has one.
        incarnation: Distinguishes it from a former process of the name.
    """

    name: str
    rank: int | None = None
    incarnation: int = 0

    @property
    def id(self) -> int | None:
        """The rank, under PyTorch's name for it."""
        return self.rank
