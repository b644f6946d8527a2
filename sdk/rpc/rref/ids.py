"""Names of values, of references to them, and of workers; each worker counts its own."""

import itertools
from typing import NamedTuple, final

from gradmesh.protos.common.v1 import value_pb2, worker_pb2


class Worker(NamedTuple):
    """One process: a restarted one is another.

    Args:
        name: Unique in the mesh.
        incarnation: Grows with each start; 0 where it is not known.
    """

    name: str
    incarnation: int = 0

    def proto(self) -> worker_pb2.WorkerId:
        """Return it as the wire carries it."""
        return worker_pb2.WorkerId(name=self.name, incarnation=self.incarnation)


class Key(NamedTuple):
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
class Keys:
    """Names that nothing had before: a worker counts its values and references together.

    Args:
        me: The worker.
    """

    def __init__(self, me: Worker) -> None:
        self._me = me
        self._count = itertools.count(1)

    def new(self) -> Key:
        """Return the next name."""
        return Key(self._me.name, self._me.incarnation, next(self._count))


def worker_of(proto: worker_pb2.WorkerId) -> Worker:
    """Return a worker that arrived."""
    return Worker(proto.name, proto.incarnation)


def key_of(ref: value_pb2.RemoteRef) -> Key:
    """Return the name of a value."""
    return Key(ref.creator, ref.incarnation, ref.counter)


def fork_of(ref: value_pb2.RemoteRef) -> Key:
    """Return the name of a reference; the creator's own has the value's."""
    return fork_key(ref.fork) if ref.HasField("fork") else key_of(ref)


def fork_key(fork: value_pb2.ForkId) -> Key:
    """Return the name of a reference."""
    return Key(fork.worker.name, fork.worker.incarnation, fork.counter)


def fork_proto(fork: Key) -> value_pb2.ForkId:
    """Return the name of a reference as the wire carries it."""
    worker = worker_pb2.WorkerId(name=fork.worker, incarnation=fork.incarnation)
    return value_pb2.ForkId(worker=worker, counter=fork.counter)
