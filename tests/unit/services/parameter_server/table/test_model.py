"""Random uses of a hash table against a dictionary: nothing is lost, nothing doubled."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.sdk.table.spec import least_max_bytes

ids_of = st.lists(
    st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=40,
    unique=True,
)


@pytest.mark.parametrize("policy", ["", "lru", "lfu", "ttl"])
@pytest.mark.parametrize("servers", [1, 3])
def test_a_table_does_what_a_dictionary_does(make_shards, policy, servers, tmp_path):
    """A row is its initial value minus the pushes since it was last created."""
    fields = {}
    if policy:
        steps = {"steps": 4} if policy == "ttl" else {}
        fields["eviction"] = table_pb2.Recipe(name=policy, settings=steps)
        fields["max_bytes"] = least_max_bytes(8)

    class Model(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.shards = make_shards(servers, dim=2, **fields)
            self.pure = make_shards(dim=2)
            self.pushed: dict[int, float] = {}
            self.step = 0

        def held(self):
            found = {}
            for shard in self.shards.shards:
                for ids, rows, _ in shard.blocks():
                    assert not set(ids.tolist()) & set(found)
                    found |= dict(zip(ids.tolist(), rows, strict=True))
            return found

        def drop_rows(self):
            self.pushed = {id_: self.pushed.get(id_, 0.0) for id_ in self.held()}

        @rule(ids=ids_of)
        def read(self, ids):
            known = self.held()
            rows = self.shards.read(np.array(ids))
            first = self.pure.read(np.array(ids), peek=True)
            for id_, row, initial in zip(ids, rows, first, strict=True):
                lost = 0.0 if id_ not in known else self.pushed.get(id_, 0.0)
                # An eviction in this call resets a row to its initial value.
                assert np.allclose(row, initial - lost, atol=1e-3) or (
                    policy and np.array_equal(row, initial)
                )
                if np.array_equal(row, initial):
                    self.pushed.pop(id_, None)
            self.drop_rows()

        @rule(ids=ids_of, size=st.integers(1, 8))
        def push(self, ids, size):
            known = set(self.held())
            self.step += 1
            grads = np.full((len(ids), 2), size, np.float32)
            self.shards.push(np.array(ids), grads, self.step)
            after = self.held()
            first = self.pure.read(np.array(ids), peek=True)
            for id_, initial in zip(ids, first, strict=True):
                if id_ in after:
                    lost = float(np.float64(initial[0]) - np.float64(after[id_][0]))
                    old = self.pushed.get(id_, 0.0) if id_ in known else 0.0
                    assert round(lost) in ({old + size, size} if policy else {old + size})
                    self.pushed[id_] = float(round(lost))
            self.drop_rows()

        @rule()
        def reset(self):
            for shard in self.shards.shards:
                shard.reset()
            self.pushed.clear()
            self.step = 0

        @invariant()
        def counts_are_true(self):
            held = self.held()
            if policy != "ttl":
                assert sum(shard.row_count for shard in self.shards.shards) == len(held)

    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("policy", ["", "lru"])
def test_concurrent_changes_are_applied_exactly_once(make_shards, policy):
    fields = (
        {"eviction": table_pb2.Recipe(name=policy), "max_bytes": 40 * least_max_bytes(16)}
        if policy
        else {}
    )
    shards = make_shards(**fields)
    table = shards.shards[0]
    initial = make_shards().read(np.arange(-40_000, 40_000))
    failures: list[str] = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(25):
            # Few ids a bucket, so that nothing is evicted: rows grow, share buckets, are moved.
            ids = np.unique(rng.integers(-40_000, 40_000, 2000))
            handles = table.slots_of(ids)
            rows = table.read(handles)
            lost = initial[ids + 40_000].astype(np.float64) - rows
            if np.abs(lost - np.round(lost)).max() > 1e-3:
                failures.append("a row that no pushes explain")
            table.prepare(handles)
            table.apply(handles, np.ones((ids.size, 4), np.float32))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)

    expected = np.zeros(80_000)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        for _ in range(25):
            expected[np.unique(rng.integers(-40_000, 40_000, 2000)) + 40_000] += 1
    rows = shards.read(np.arange(-40_000, 40_000), peek=True)
    assert failures == []
    assert table.evicted == 0
    np.testing.assert_array_equal(np.round(initial[:, 0] - rows[:, 0]), expected)
    assert table.row_count == int((expected > 0).sum())
