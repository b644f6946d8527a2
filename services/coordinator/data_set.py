"""One data set: its shards, and which worker reads which of them. Pure.

A data set is divided into shards of equal size. In an epoch each shard is read to its end once. A
shard is free, assigned to a worker, or done; the shards of a lost worker are free again. The next
epoch begins when all shards are done.
"""

import heapq
from collections import Counter
from typing import NamedTuple, TypeAlias, final

import msgspec

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.limits import check_name

MAX_SHARDS = 1 << 20
"""Shards of one data set; each takes a bit in the coordinator's file."""

MAX_POSITION_BYTES = MAX_SHARDS // 8 + 1024
"""A position: a bit per shard, and a few numbers."""

MAX_EPOCHS = 1 << 62
"""Epochs of a data set; far more than can be read."""

Worker: TypeAlias = tuple[str, int]
"""Name and incarnation."""


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
class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a data set as the journal and positions of clients store it."""

    spec: tuple[int, int, int] = msgspec.field(name="cut")
    epoch: int
    done: bytes
    held: dict[int, tuple[str, int]] = {}
    answers: dict[str, tuple[int, int, Range | None]] = {}


def read_position(name: str, position: bytes, *, with_assignments: bool = False) -> Stored:
    """Return the state that `DataSets.position` or `DataSets.dump` returned.

    Args:
        name: Name of the data set.
        position: The bytes.
        with_assignments: Whether they are from our own journal, and say which workers hold shards.

    Raises:
        InvalidRequest: The bytes are not a position.
    """
    check_name("data set", name)
    try:
        if not with_assignments and len(position) > MAX_POSITION_BYTES:
            raise ValueError(f"it has {len(position)} bytes, at most {MAX_POSITION_BYTES}")
        stored = msgspec.msgpack.decode(position, type=Stored)
        spec = DataSetSpec(*stored.spec)
        if min(spec) < 0 or not spec.samples or not spec.shard_samples:
            raise ValueError("it has no samples or empty shards")
        if spec.shards > MAX_SHARDS or len(stored.done) != -(-spec.shards // 8):
            raise ValueError("its shards do not fit")
        if not 0 <= stored.epoch < MAX_EPOCHS:
            raise ValueError(f"its epoch is {stored.epoch}")
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise InvalidRequest(f"data set {name!r}: not a position: {error}", dataset=name) from None
    return stored if with_assignments else msgspec.structs.replace(stored, held={}, answers={})


@final
class DataSet:
    """One data set.

    Args:
        spec: Its division into shards.
        stored: Its state; None for one that was never read.
    """

    def __init__(self, spec: DataSetSpec, stored: Stored | None = None) -> None:
        self.spec = spec
        self.epoch = 0 if stored is None else stored.epoch
        # A bit per shard: a set of numbers would take a hundred times as much.
        self.done = bytearray(-(-spec.shards // 8) if stored is None else stored.done)
        self.finished = int.from_bytes(self._mask(), "little").bit_count()
        self.held: dict[int, Worker] = dict(stored.held) if stored is not None else {}
        self.holding = Counter(self.held.values())
        # The newest answer to each worker, in case it repeats the request.
        self.answers = dict(stored.answers) if stored is not None else {}
        # Shards below `_fresh` that were given back; those from there on were not taken yet.
        self._freed: list[int] = []
        self._fresh = 0

    def _mask(self) -> bytearray:
        """Clear the bits beyond the last shard; return all."""
        if self.spec.shards % 8:
            self.done[-1] &= (1 << self.spec.shards % 8) - 1
        return self.done

    @property
    def is_over(self) -> bool:
        """Whether all epochs are read."""
        return bool(self.spec.epochs) and self.epoch >= self.spec.epochs

    def is_done(self, shard: int) -> bool:
        """Return whether a shard is read to its end in this epoch."""
        return bool(self.done[shard // 8] >> shard % 8 & 1)

    def finish(self, shard: int, worker: Worker) -> None:
        """Record that a worker has read a shard to its end, if it is its own."""
        # A shard that was reassigned meanwhile belongs to another worker.
        if self.held.get(shard) == worker:
            self._take_back(shard)
            self.done[shard // 8] |= 1 << shard % 8
            self.finished += 1

    def begin_epoch(self) -> None:
        """Begin the next epoch if all shards of this one are done."""
        if self.finished == self.spec.shards:
            self.epoch += 1
            self.done, self.finished = bytearray(len(self.done)), 0
            self._freed, self._fresh = [], 0

    def take(self, worker: Worker) -> int | None:
        """Assign the first free shard to a worker; return None if there is none."""
        shard = heapq.heappop(self._freed) if self._freed else self._find_fresh()
        if shard is not None:
            self.held[shard] = worker
            self.holding[worker] += 1
        return shard

    def _find_fresh(self) -> int | None:
        while self._fresh < self.spec.shards:
            # Skip eight shards at a time where a restored position has finished all of them.
            if self._fresh % 8 == 0 and self.done[self._fresh // 8] == 0xFF:
                rest = self.done[self._fresh // 8 :]
                self._fresh += 8 * (len(rest) - len(rest.lstrip(b"\xff")))
                continue
            shard, self._fresh = self._fresh, self._fresh + 1
            if not self.is_done(shard) and shard not in self.held:
                return shard
        return None

    def free(self, worker: str) -> bool:
        """Free the shards of a lost worker; return whether it was known here."""
        if worker not in self.answers:
            return False  # whoever holds a shard got an answer
        del self.answers[worker]
        for shard in [shard for shard, (name, _) in self.held.items() if name == worker]:
            self._take_back(shard)
            if shard < self._fresh:
                heapq.heappush(self._freed, shard)
        return True

    def _take_back(self, shard: int) -> None:
        worker = self.held.pop(shard)
        self.holding[worker] -= 1
        if not self.holding[worker]:
            del self.holding[worker]

    def dump(self, *, with_assignments: bool) -> bytes:
        """Return the state for `read_position`."""
        spec = (self.spec.samples, self.spec.shard_samples, self.spec.epochs)
        found = Stored(spec, self.epoch, bytes(self.done))
        if with_assignments:
            found = msgspec.structs.replace(found, held=self.held, answers=self.answers)
        return msgspec.msgpack.encode(found)

    def check_invariants(self) -> None:
        """Check that the data set is consistent; for tests.

        Raises:
            AssertionError: An invariant is violated.
        """
        assert not any(self.is_done(shard) for shard in self.held)
        assert self.finished == sum(map(self.is_done, range(self.spec.shards)))
        assert self.finished < self.spec.shards
        assert all(0 <= shard < self.spec.shards for shard in self.held)
        assert self.holding == Counter(self.held.values())
        assert all(shard not in self.held and shard < self._fresh for shard in self._freed)
