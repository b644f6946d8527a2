"""Growth, eviction and restore against a dictionary, under concurrent lookups."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.sharding import buckets_of
from gradmesh.sdk.table.spec import least_max_bytes

_RANGE = np.arange(-60_000, 60_000)
# Ids of a few buckets of every server, so that these grow, and are full where there is a limit.
POOL = _RANGE[buckets_of(_RANGE) % 256 == 0]
BUCKET_ROWS = 12


def some_ids(seed, count):
    return POOL[np.unique(np.random.default_rng(seed).integers(0, POOL.size, count))]


ids_of = st.builds(some_ids, st.integers(0, 2**31), st.integers(1, 120))


class Readers:
    """Threads that look rows up until stopped; a row has lost a whole number or nothing."""

    def __init__(self, shards, initial, count=2):
        self.failures = []
        self._shards, self._initial = shards, initial
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, seed):
        try:
            # A pause, or one core would do nothing else.
            while not self._ended.wait(0.002):
                seed += 2
                ids = some_ids(seed, 60)
                lost = lost_of(self._initial, ids, self._shards.read(ids))
                assert np.abs(lost - np.round(lost)).max() < 1e-3, "a row that no pushes explain"
        except Exception as error:
            self.failures.append(error)

    def close(self):
        self._ended.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def lost_of(initial, ids, rows):
    return initial[np.searchsorted(POOL, ids)].astype(np.float64) - rows


def possible(history):
    """The valid totals of a row: all its pushes, or those after an eviction."""
    return {0, *itertools.accumulate(reversed(history))}


@pytest.mark.parametrize(("policy", "servers"), [("", 1), ("", 3), ("lru", 3), ("lfu", 1)])
def test_restores_and_lookups_at_once_lose_and_double_nothing(make_shards, policy, servers):
    fields = {}
    if policy:
        fields = {
            "eviction": table_pb2.Recipe(name=policy),
            "max_bytes": BUCKET_ROWS * least_max_bytes(8),
        }
    initial = make_shards(dim=2).read(POOL, peek=True)

    class Model(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.shards = make_shards(servers, dim=2, **fields)
            self.pushed: dict[int, list[int]] = {}
            self.saved = None
            self.numbers = itertools.count()
            self.readers = Readers(self.shards, initial)

        def teardown(self):
            self.readers.close()
            assert self.readers.failures == []

        def explain(self, ids, rows):
            """Check rows against the pushes; return the total of each row."""
            lost = lost_of(initial, ids, rows)
            whole = np.round(lost[:, 0]).astype(int)
            np.testing.assert_allclose(lost, np.stack([whole, whole], 1), atol=1e-3)
            for id_, value in zip(ids.tolist(), whole.tolist(), strict=True):
                history = self.pushed.get(id_, [])
                assert value in (possible(history) if policy else {sum(history)}), id_
            return dict(zip(ids.tolist(), whole.tolist(), strict=True))

        @rule(ids=ids_of, size=st.integers(1, 8))
        def push(self, ids, size):
            for id_ in ids.tolist():
                self.pushed.setdefault(id_, []).append(size)
            self.shards.push(ids, np.full((ids.size, 2), size, np.float32))

        @rule(ids=ids_of)
        def read(self, ids):
            self.explain(ids, self.shards.read(ids))

        @rule(ids=ids_of)
        def checkpoint(self, ids):
            name = f"cut-{next(self.numbers)}"
            for shard in self.shards.shards:
                shard.freeze(name, "")
            before = {id_: list(history) for id_, history in self.pushed.items()}
            self.push(ids, 1)
            after, self.pushed = self.pushed, before
            blocks, found = [], {}
            for shard in self.shards.shards:
                mine = []
                for piece in itertools.count():
                    block = shard.changes.read(name, piece)
                    if block is None:
                        break
                    if "ids" in block:
                        assert not set(block["ids"].tolist()) & set(found)
                        found |= self.explain(block["ids"], block["rows"])
                    if block:
                        mine.append({n: array.copy() for n, array in block.items()})
                blocks.append(mine)
                shard.changes.thaw(name, False)
            assert policy or set(before) <= set(found)
            self.pushed = after
            self.saved = blocks, found

        @rule()
        def restore(self):
            if self.saved is None:
                return
            blocks, found = self.saved
            for shard, mine in zip(self.shards.shards, blocks, strict=True):
                shard.reset()
                for block in mine:
                    shard.restore(block)
            self.pushed = {id_: [value] for id_, value in found.items() if value}

        @invariant()
        def every_row_is_explained(self):
            held = {}
            for shard in self.shards.shards:
                for ids, rows, _ in shard.blocks():
                    assert not set(ids.tolist()) & set(held)
                    held |= self.explain(ids, rows)
            assert policy or set(self.pushed) <= set(held)
            assert not policy or len(held) <= BUCKET_ROWS * 16
            assert self.readers.failures == []

    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=8,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
