"""Data shards that the coordinator hands out, so that each is read once an epoch."""

from collections.abc import Iterator
from typing import NamedTuple, final

from gradmesh.protos.coordinator.v1 import data_pb2
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.transport.deadline import Deadline, check_timeout


@final
class DataShard(NamedTuple):
    """A range of samples to read.

    Attributes:
        epoch: Which pass over the set, from 0.
        number: Within the epoch.
        begin: Its first sample.
        end: One after its last.
    """

    epoch: int
    number: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@final
class DataShards:
    """An iterator over the shards of a data set that the coordinator hands to this worker.

    A shard counts as finished when the next one is requested. The shard of a worker that died goes
    to another worker: a finished shard is never read again in its epoch, but the samples of an
    unfinished one are.

    Args:
        mesh: The mesh whose coordinator hands them out.
        dataset: Name of the set.
        samples: In the whole set.
        shard_samples: In a shard.
        epochs: Number of passes over the set; 0 for no limit.
        timeout_s: How long to wait for a shard, while others read the last ones of an epoch; the
            mesh's by default.
    """

    def __init__(
        self,
        mesh: Mesh,
        dataset: str,
        *,
        samples: int,
        shard_samples: int,
        epochs: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        self._coordinator = mesh.connection.coordinator
        self._timeout_s = check_timeout(timeout_s, mesh.connection.timeouts.call_s)
        self._request = data_pb2.TakeShardRequest(
            name=mesh.name,
            incarnation=mesh.connection.incarnation,
            dataset=dataset,
            samples=samples,
            shard_samples=shard_samples,
            epochs=epochs,
        )
        self._current: DataShard | None = None

    def __iter__(self) -> Iterator[DataShard]:
        return self

    def __next__(self) -> DataShard:
        """Finish the current shard and return the next one.

        Raises:
            StopIteration: All epochs are finished.
            InvalidRequest: Other workers use other shards of the set.
            DeadlineExceeded: Other workers do not finish.
        """
        request = self._request
        if self._current is not None or not request.sequence:
            # Otherwise the former request was not answered; repeat it.
            request.sequence += 1
            request.done[:] = [] if self._current is None else [self._current.number]
            self._current = None
        deadline = Deadline.after(self._timeout_s)
        found = self._coordinator.take_shard(request, deadline)
        if found.is_over:
            raise StopIteration
        self._current = DataShard(found.epoch, found.shard, found.begin, found.end)
        return self._current

    @property
    def position(self) -> bytes:
        """The data position of all workers together, to store in a checkpoint."""
        deadline = Deadline.after(self._timeout_s)
        return self._coordinator.get_data_position(self._request.dataset, deadline)

    def seek(self, position: bytes) -> None:
        """Set the data position of all workers; their current shards are handed out again."""
        self._current = None
        deadline = Deadline.after(self._timeout_s)
        self._coordinator.set_data_position(self._request.dataset, position, deadline)
