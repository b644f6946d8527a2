"""Whatever happened to a store, it comes back from its log bit for bit."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradmesh.services.parameter_server.log.snapshot import take_snapshot
from tests.unit.services.parameter_server.log.server import Server, contents

_ids = st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True)
_table = st.sampled_from(["dense", "hash", "lru", "often", "ttl"])
_operation = st.one_of(
    st.tuples(st.just("push"), _table, _ids),
    st.tuples(st.just("lookup"), _table, _ids),
    st.tuples(st.just("context"), _table, _ids),
    st.tuples(st.just("step"), _table, _ids),
    st.tuples(st.just("run"), st.just("dense"), st.just([0])),
    st.tuples(st.just("snapshot"), st.just(""), st.just([0])),
    st.tuples(st.just("restart"), st.just(""), st.just([0])),
)


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(_operation, max_size=25))
def test_whatever_happened_comes_back(make, tmp_path_factory, operations):
    server = Server(make, tmp_path_factory.mktemp("log"))
    generation, step = 0, 0
    try:
        for number, (kind, table, ids) in enumerate(operations):
            value = 0.25 * number - 1
            if kind == "push":
                server.push(table, ids, value)
            elif kind == "lookup":
                server.lookup(table, ids)
            elif kind == "context":
                server.contribute(table, ids, value)
            elif kind == "run" or (kind == "step" and not generation):
                generation, step = generation + 2, 0
                names = [t.spec.name for t in server.store.tables()]
                server.store.start_run(generation, 1, names, make.deadline())
            elif kind == "step":
                mark = make.mark(step, 0, generation)
                server.contribute(table, ids, value, mark)
                step += 1
            elif kind == "snapshot":
                take_snapshot(server.store)
            else:
                server.open()
                if generation:
                    origin = server.store.steps.run.origin
                    generation += 2
                    server.store.start_run(
                        generation, 1, [], make.deadline(), origin=origin, steps=step
                    )
        expected = contents(server.store)
        answers = {t: server.store.shelf[t].read(np.arange(41), peek=True) for t in expected}
        server.open()

        found = contents(server.store)
        for name, (rows, steps, memory, marks) in found.items():
            assert (steps, memory) == expected[name][1:3]
            if server.store.shelf[name].counts_uses:
                assert (rows, marks) == (expected[name][0], expected[name][3])
            np.testing.assert_array_equal(
                server.store.shelf[name].read(np.arange(41), peek=True), answers[name]
            )
    finally:
        server.close()
