"""Which worker reads which shard of which data set. Pure."""

from typing import final

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, ShardNotReady
from gradmesh.protos.limits import check_name
from gradmesh.services.coordinator.data_set import (
    MAX_SHARDS,
    DataSet,
    DataSetSpec,
    Range,
    Stored,
    Worker,
)


@final
class DataSets:
    """All data sets by name. They are never removed: their positions outlive their workers."""

    def __init__(self) -> None:
        self._sets: dict[str, DataSet] = {}
        # Who began them is not in the journal: those from before a restart count in the total only.
        self._count = Tally(limits.DATA_SETS)
        self._shards = Tally(limits.DATA_SHARDS)

    def take(
        self,
        name: str,
        spec: DataSetSpec,
        worker: Worker,
        sequence: int,
        done: list[int],
        account: str = "",
    ) -> Range | None:
        """Record finished shards and assign the next one; return None when all epochs are read.

        Args:
            name: Name of the data set.
            spec: The division into shards that the worker expects.
            worker: Name and incarnation of the worker.
            sequence: Sequence number of the worker's request.
            done: Shards of the current epoch that it has finished.
            account: Under which name a new data set is counted; empty if it is not.

        Raises:
            InvalidRequest: The set is divided in another way, or the division is not valid.
            LimitExceeded: There are too many data sets, or shards that the worker has not finished.
            ShardNotReady: All remaining shards are assigned to other workers.
        """
        held = self._find(name, spec, account)
        former = held.answers.get(worker[0])
        if former is not None and former[:2] == (worker[1], sequence):
            return former[2]
        for shard in done:
            held.finish(shard, worker)
        held.begin_epoch()
        answer = None if held.is_over else self._next(name, held, worker)
        held.answers[worker[0]] = worker[1], sequence, answer
        return answer

    def _find(self, name: str, spec: DataSetSpec, account: str) -> DataSet:
        check_name("data set", name)
        held = self._sets.get(name)
        if held is None:
            if spec.samples < 1 or spec.shard_samples < 1 or spec.shards > MAX_SHARDS:
                raise InvalidRequest(
                    f"data set {name!r}: {spec.samples} samples in shards of {spec.shard_samples}; "
                    f"there must be 1 to {MAX_SHARDS} shards",
                    dataset=name,
                )
            return self._put(name, DataSet(spec), account)
        if held.spec != spec:
            raise InvalidRequest(
                f"data set {name!r} is divided into {tuple(held.spec)} (samples, samples of a "
                f"shard, epochs), not {tuple(spec)}; use the same values everywhere",
                dataset=name,
            )
        return held

    def _put(self, name: str, made: DataSet, account: str) -> DataSet:
        """Add a data set, or replace one.

        Raises:
            LimitExceeded: There are too many.
        """
        former = self._sets.get(name)
        if former is None:
            self._count.check(account)
            self._shards.check(account, made.spec.shards)
            self._count.add(account)
            self._shards.add(account, made.spec.shards)
        elif (more := made.spec.shards - former.spec.shards) > 0:
            self._shards.check(account, more)
            self._shards.add(account, more)
        self._sets[name] = made
        return made

    @staticmethod
    def _next(name: str, held: DataSet, worker: Worker) -> Range:
        if held.holding[worker] >= limits.MAX_SHARDS_HELD:
            raise LimitExceeded(
                f"data set {name!r}: {worker[0]!r} has taken {held.holding[worker]} shards that it "
                f"has not finished, the limit is {limits.MAX_SHARDS_HELD}; finish some first",
                limit="shards of a worker",
                most=limits.MAX_SHARDS_HELD,
            )
        shard = held.take(worker)
        if shard is None:
            raise ShardNotReady(
                f"data set {name!r}: other workers still read the last {len(held.held)} shards of "
                f"epoch {held.epoch}; ask again",
                dataset=name,
            )
        begin = shard * held.spec.shard_samples
        end = min(begin + held.spec.shard_samples, held.spec.samples)
        return Range(held.epoch, shard, begin, end)

    def drop(self, worker: str) -> list[str]:
        """Free the shards of a lost worker; return the data sets in which it had any."""
        return [dataset for dataset, held in self._sets.items() if held.free(worker)]

    def workers(self) -> set[str]:
        """Return the workers that have shards assigned."""
        return {name for held in self._sets.values() for name, _ in held.held.values()}

    def dump(self, name: str) -> bytes:
        """Return the whole state of a data set for the journal; empty if it was never read."""
        return self._sets[name].dump(with_assignments=True) if name in self._sets else b""

    def position(self, name: str) -> bytes:
        """Return epoch and finished shards of a data set; empty if it was never read."""
        return self._sets[name].dump(with_assignments=False) if name in self._sets else b""

    def restore(self, name: str, stored: Stored, account: str = "") -> None:
        """Set a data set to a state that `read_position` returned.

        Args:
            name: Name of the data set.
            stored: The state.
            account: Under which name a new data set is counted; empty if it is not.

        Raises:
            LimitExceeded: There are too many data sets.
        """
        self._put(name, DataSet(DataSetSpec(*stored.spec), stored), account)

    def check_invariants(self) -> None:
        """Check that the data sets are consistent; for tests.

        Raises:
            AssertionError: An invariant is violated.
        """
        for held in self._sets.values():
            held.check_invariants()
