"""Which worker reads which part of which data set. Pure.

A data set is cut into shards of equal size. Within an epoch each shard is finished once: it is
free, in the hands of a worker, or done. A shard in the hands of a worker that is gone is free
again. The next epoch begins when all are done.
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
    """How a data set is cut.

    Attributes:
        samples: In the whole set.
        shard_samples: In a shard.
        epochs: How often it is read; 0 for without end.
    """

    samples: int
    shard_samples: int
    epochs: int

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return -(-self.samples // self.shard_samples)


@final
class Range(NamedTuple):
    """A shard in somebody's hands.

    Attributes:
        epoch: From 0.
        shard: From 0.
        begin: Its first sample.
        end: One after its last.
    """

    epoch: int
    shard: int
    begin: int
    end: int


@final
class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What outlives the coordinator."""

    cut: tuple[int, int, int]
    epoch: int
    done: bytes
    held: dict[int, tuple[str, int]] = {}
    answers: dict[str, tuple[int, int, Range | None]] = {}


@final
@dataclass(slots=True)
class _DataSet:
    cut: DataSetSpec
    epoch: int = 0
    done: set[int] = field(default_factory=set)
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    # The newest answer to each worker, should it ask again.
    answers: dict[str, tuple[int, int, Range | None]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return bool(self.cut.epochs) and self.epoch >= self.cut.epochs

    def dump(self, hands: bool) -> bytes:
        bits = bytearray(-(-self.cut.shards // 8))
        for shard in self.done:
            bits[shard // 8] |= 1 << shard % 8
        cut = (self.cut.samples, self.cut.shard_samples, self.cut.epochs)
        found = _Memory(cut, self.epoch, bytes(bits))
        if hands:
            found = msgspec.structs.replace(found, held=self.held, answers=self.answers)
        return msgspec.msgpack.encode(found)


@final
class DataSets:
    """All data sets by name."""

    def __init__(self) -> None:
        self._sets: dict[str, _DataSet] = {}

    def take(
        self, name: str, cut: DataSetSpec, worker: tuple[str, int], sequence: int, done: list[int]
    ) -> Range | None:
        """Take notice of finished shards and hand out the next one; None when all is read.

        Args:
            name: Of the data set.
            cut: How the worker thinks that it is cut.
            worker: Name and incarnation.
            sequence: The worker's count of its requests.
            done: Shards of the current epoch that it has finished.

        Raises:
            InvalidRequest: The set is cut in another way, or cannot be.
            ShardNotReady: All that is left is in others' hands.
        """
        held = self._find(name, cut)
        former = held.answers.get(worker[0])
        if former is not None and former[:2] == (worker[1], sequence):
            return former[2]
        for shard in done:
            # One that was taken back meanwhile is another worker's.
            if held.held.get(shard) == worker:
                del held.held[shard]
                held.done.add(shard)
        if len(held.done) == held.cut.shards:
            held.epoch, held.done = held.epoch + 1, set()
        answer = None if held.is_over else self._next(name, held, worker)
        held.answers[worker[0]] = worker[1], sequence, answer
        return answer

    def _find(self, name: str, cut: DataSetSpec) -> _DataSet:
        check_name("data set", name)
        if cut.samples < 1 or cut.shard_samples < 1 or cut.shards > MAX_SHARDS:
            raise InvalidRequest(
                f"data set {name!r}: {cut.samples} samples in shards of {cut.shard_samples}; there "
                f"must be 1 to {MAX_SHARDS} shards",
                dataset=name,
            )
        held = self._sets.setdefault(name, _DataSet(cut))
        if held.cut != cut:
            raise InvalidRequest(
                f"data set {name!r} is cut into {tuple(held.cut)} (samples, samples of a shard, "
                f"epochs), not {tuple(cut)}; say the same everywhere",
                dataset=name,
            )
        return held

    @staticmethod
    def _next(name: str, held: _DataSet, worker: tuple[str, int]) -> Range:
        taken = held.done | held.held.keys()
        shard = next((s for s in range(held.cut.shards) if s not in taken), None)
        if shard is None:
            raise ShardNotReady(
                f"data set {name!r}: others still read the last {len(held.held)} shards of epoch "
                f"{held.epoch}; ask again",
                dataset=name,
            )
        held.held[shard] = worker
        begin = shard * held.cut.shard_samples
        end = min(begin + held.cut.shard_samples, held.cut.samples)
        return Range(held.epoch, shard, begin, end)

    def drop(self, worker: str) -> list[str]:
        """Take back what a worker that is gone has; return the data sets in which it had any."""
        found = []
        for dataset, held in self._sets.items():
            mine = [shard for shard, (name, _) in held.held.items() if name == worker]
            for shard in mine:
                del held.held[shard]
            if held.answers.pop(worker, None) is not None or mine:
                found.append(dataset)
        return found

    def workers(self) -> set[str]:
        """Return who has a shard in hand."""
        return {name for held in self._sets.values() for name, _ in held.held.values()}

    def dump(self, name: str) -> bytes:
        """Return all that is known of a data set; empty if nobody has read it."""
        return self._sets[name].dump(hands=True) if name in self._sets else b""

    def position(self, name: str) -> bytes:
        """Return the epoch and the finished shards of a data set; empty if nobody has read it."""
        return self._sets[name].dump(hands=False) if name in self._sets else b""

    def restore(self, name: str, position: bytes) -> None:
        """Put a data set back to what `position` or `dump` returned.

        Raises:
            InvalidRequest: It is no position.
        """
        check_name("data set", name)
        try:
            memory = msgspec.msgpack.decode(position, type=_Memory)
            cut = DataSetSpec(*memory.cut)
            if min(cut) < 0 or not cut.samples or not cut.shard_samples:
                raise ValueError("it is cut into nothing")
            if cut.shards > MAX_SHARDS or len(memory.done) != -(-cut.shards // 8):
                raise ValueError("its shards do not fit")
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise InvalidRequest(f"data set {name!r}: no position: {error}", dataset=name) from None
        done = {s for s in range(cut.shards) if memory.done[s // 8] >> s % 8 & 1}
        self._sets[name] = _DataSet(cut, memory.epoch, done, memory.held, memory.answers)

    def check_invariants(self) -> None:
        """Return if the data sets are consistent; for tests.

        Raises:
            AssertionError: They are not.
        """
        for held in self._sets.values():
            assert not held.done & held.held.keys()
            assert len(held.done) < held.cut.shards
            assert all(0 <= shard < held.cut.shards for shard in (*held.done, *held.held))
