"""Which worker reads which shard of which data set. Pure.

A data set is divided into shards of equal size. In an epoch each shard is read to its end once. A
shard is free, assigned to a worker, or done; the shards of a lost worker are free again. The next
epoch begins when all shards are done.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import msgspec

from gradmesh.protos.errors import InvalidRequest, ShardNotReady
from gradmesh.protos.limits import check_name

MAX_SHARDS = 1 << 20
"""Shards of one data set; each takes a bit in the coordinator's file."""


@final
class DataSetSpec(NamedTuple):
    """How a data set is divided into shards.

    Attributes:
        samples: Number of samples in the whole set.
        shard_samples: Number of samples in a shard.
        epochs: How often the set is read; 0 for an endless set.
    """

    samples: int
    shard_samples: int
    epochs: int

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.samples // self.shard_samples)


@final
class Range(NamedTuple):
    """A shard assigned to a worker.

    Attributes:
        epoch: From 0.
        shard: From 0.
        begin: First sample.
        end: One past the last sample.
    """

    epoch: int
    shard: int
    begin: int
    end: int


@final
class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a data set as the journal and positions of clients store it."""

    spec: tuple[int, int, int] = msgspec.field(name="cut")
    epoch: int
    done: bytes
    held: dict[int, tuple[str, int]] = {}
    answers: dict[str, tuple[int, int, Range | None]] = {}


@final
@dataclass(slots=True)
class _DataSet:
    spec: DataSetSpec
    epoch: int = 0
    done: set[int] = field(default_factory=set)
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    # The newest answer to each worker, in case it repeats the request.
    answers: dict[str, tuple[int, int, Range | None]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return bool(self.spec.epochs) and self.epoch >= self.spec.epochs

    def dump(self, *, with_assignments: bool) -> bytes:
        bits = bytearray(-(-self.spec.shards // 8))
        for shard in self.done:
            bits[shard // 8] |= 1 << shard % 8
        spec = (self.spec.samples, self.spec.shard_samples, self.spec.epochs)
        found = _Stored(spec, self.epoch, bytes(bits))
        if with_assignments:
            found = msgspec.structs.replace(found, held=self.held, answers=self.answers)
        return msgspec.msgpack.encode(found)


@final
class DataSets:
    """All data sets by name."""

    def __init__(self) -> None:
        self._sets: dict[str, _DataSet] = {}

    def take(
        self, name: str, spec: DataSetSpec, worker: tuple[str, int], sequence: int, done: list[int]
    ) -> Range | None:
        """Record finished shards and assign the next one; return None when all epochs are read.

        Args:
            name: Name of the data set.
            spec: The division into shards that the worker expects.
            worker: Name and incarnation of the worker.
            sequence: Sequence number of the worker's request.
            done: Shards of the current epoch that it has finished.

        Raises:
            InvalidRequest: The set is divided in another way, or the division is not valid.
            ShardNotReady: All remaining shards are assigned to other workers.
        """
        held = self._find(name, spec)
        former = held.answers.get(worker[0])
        if former is not None and former[:2] == (worker[1], sequence):
            return former[2]
        for shard in done:
            # A shard that was reassigned meanwhile belongs to another worker.
            if held.held.get(shard) == worker:
                del held.held[shard]
                held.done.add(shard)
        if len(held.done) == held.spec.shards:
            held.epoch, held.done = held.epoch + 1, set()
        answer = None if held.is_over else self._next(name, held, worker)
        held.answers[worker[0]] = worker[1], sequence, answer
        return answer

    def _find(self, name: str, spec: DataSetSpec) -> _DataSet:
        check_name("data set", name)
        if spec.samples < 1 or spec.shard_samples < 1 or spec.shards > MAX_SHARDS:
            raise InvalidRequest(
                f"data set {name!r}: {spec.samples} samples in shards of {spec.shard_samples}; "
                f"there must be 1 to {MAX_SHARDS} shards",
                dataset=name,
            )
        held = self._sets.setdefault(name, _DataSet(spec))
        if held.spec != spec:
            raise InvalidRequest(
                f"data set {name!r} is divided into {tuple(held.spec)} (samples, samples of a "
                f"shard, epochs), not {tuple(spec)}; use the same values everywhere",
                dataset=name,
            )
        return held

    @staticmethod
    def _next(name: str, held: _DataSet, worker: tuple[str, int]) -> Range:
        taken = held.done | held.held.keys()
        shard = next((s for s in range(held.spec.shards) if s not in taken), None)
        if shard is None:
            raise ShardNotReady(
                f"data set {name!r}: other workers still read the last {len(held.held)} shards of "
                f"epoch {held.epoch}; ask again",
                dataset=name,
            )
        held.held[shard] = worker
        begin = shard * held.spec.shard_samples
        end = min(begin + held.spec.shard_samples, held.spec.samples)
        return Range(held.epoch, shard, begin, end)

    def drop(self, worker: str) -> list[str]:
        """Free the shards of a lost worker; return the data sets in which it had any."""
        found = []
        for dataset, held in self._sets.items():
            mine = [shard for shard, (name, _) in held.held.items() if name == worker]
            for shard in mine:
                del held.held[shard]
            if held.answers.pop(worker, None) is not None or mine:
                found.append(dataset)
        return found

    def workers(self) -> set[str]:
        """Return the workers that have shards assigned."""
        return {name for held in self._sets.values() for name, _ in held.held.values()}

    def dump(self, name: str) -> bytes:
        """Return the whole state of a data set for the journal; empty if it was never read."""
        return self._sets[name].dump(with_assignments=True) if name in self._sets else b""

    def position(self, name: str) -> bytes:
        """Return epoch and finished shards of a data set; empty if it was never read."""
        return self._sets[name].dump(with_assignments=False) if name in self._sets else b""

    def restore(self, name: str, position: bytes) -> None:
        """Set a data set to a state that `position` or `dump` returned.

        Raises:
            InvalidRequest: The bytes are not a position.
        """
        check_name("data set", name)
        try:
            stored = msgspec.msgpack.decode(position, type=_Stored)
            spec = DataSetSpec(*stored.spec)
            if min(spec) < 0 or not spec.samples or not spec.shard_samples:
                raise ValueError("it has no samples or empty shards")
            if spec.shards > MAX_SHARDS or len(stored.done) != -(-spec.shards // 8):
                raise ValueError("its shards do not fit")
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise InvalidRequest(
                f"data set {name!r}: not a position: {error}", dataset=name
            ) from None
        done = {s for s in range(spec.shards) if stored.done[s // 8] >> s % 8 & 1}
        self._sets[name] = _DataSet(spec, stored.epoch, done, stored.held, stored.answers)

    def check_invariants(self) -> None:
        """Check that the data sets are consistent; for tests.

        Raises:
            AssertionError: An invariant is violated.
        """
        for held in self._sets.values():
            assert not held.done & held.held.keys()
            assert len(held.done) < held.spec.shards
            assert all(0 <= shard < held.spec.shards for shard in (*held.done, *held.held))
