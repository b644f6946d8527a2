"""A parameter server's rpcs, called directly: repetitions and bad input change nothing."""

from contextlib import nullcontext

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    ContextReleased,
    IdOutOfRange,
    InvalidRequest,
    LookupNotFound,
    StaleGeneration,
    StaleShardMap,
    StepPending,
    TableNotFound,
)
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.recipe import Initializer
from tests.integration.one_server import CONTEXT, OneServer, ones


@pytest.fixture
def server(make_cluster, raw):
    return OneServer(make_cluster(parameter_servers=1), raw)


def test_every_repeated_rpc_takes_effect_once(server):
    apply = pb.ApplyRequest(context=CONTEXT)

    first, again = server.lookup(), server.lookup()
    for _ in range(3):
        server.backward([ones()])
    for _ in range(3):
        server.call("Apply", apply)
    pushes = [server.push([np.array([5]), ones(1)]) for _ in range(3)]
    released = [
        server.call("ReleaseContext", owner_pb2.ReleaseContextRequest(context=CONTEXT)).found
        for _ in range(2)
    ]

    rows, *_, steps = server.state()
    np.testing.assert_array_equal(first, again)
    assert np.array(rows)[:, 0].tolist() == [1, 0, 0, 1, 1, 0, 1, 1, 1, 1]
    assert steps == 2
    assert pushes == [True, False, False]
    assert released == [False, False]


def test_repeated_start_run_takes_effect_once(server):
    run = pb.StartRunRequest(generation=1, world_size=1, tables=["user"])
    server.call("StartRun", run)
    server.push([np.array([5]), ones(1)])
    pushed = server.state()

    server.call("StartRun", run)

    assert server.state() == pushed


@pytest.mark.parametrize(
    "run",
    [
        pb.StartRunRequest(generation=0, world_size=1),
        pb.StartRunRequest(generation=2, world_size=0),
        pb.StartRunRequest(generation=1, world_size=2),
    ],
)
def test_an_invalid_run_is_refused(server, run):
    server.call("StartRun", pb.StartRunRequest(generation=1, world_size=1, tables=["user"]))
    server.push([np.array([5]), ones(1)])
    before = server.state()

    with pytest.raises(InvalidRequest):
        server.call("StartRun", run)

    assert server.state() == before


def test_an_older_run_does_not_begin(server):
    server.store.fence(7)

    with pytest.raises(StaleGeneration, match="generation 6 has ended, 7 is current; join again"):
        server.call("StartRun", pb.StartRunRequest(generation=6, world_size=1, tables=["user"]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ids": [10]}, IdOutOfRange, "'user': id 10 .*rows 0 to 9"),
        ({"ids": [-1]}, IdOutOfRange, "id -1"),
        ({"ids": [[1]]}, InvalidRequest, r"int64 \[n\]"),
        ({"tables": ["nobody"]}, TableNotFound, "'nobody'.*create it first"),
        ({"tables": []}, InvalidRequest, "1 arrays, 0 are expected"),
        ({"tables": ["user", "user"]}, InvalidRequest, "1 arrays, 2 are expected"),
        ({"epoch": 0}, StaleShardMap, "shard map 0, 1 is current on ps-0"),
        ({"epoch": 99}, StaleShardMap, "shard map 99"),
        ({"context": context_pb2.ContextId()}, InvalidRequest, "no worker"),
        ({"mark": context_pb2.StepMark(generation=3)}, StaleGeneration, "generation 3"),
    ],
)
def test_a_bad_lookup_keeps_nothing(server, change, error, message):
    before = server.state()

    with pytest.raises(error, match=message):
        server.lookup(**change)

    assert server.store.contexts.open_count() == 0
    assert server.state() == before


def test_ids_of_another_type_are_refused(server):
    message = pb.LookupRequest(shard_epoch=server.epoch, tables=["user"])

    with pytest.raises(InvalidRequest, match="int32"):
        server.call("Lookup", Frame(message, [np.array([1], np.int32)]))


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        ([ones(3)], r"float32 \(2, 2\), not float32 \(3, 2\)"),
        ([ones(2, 3)], r"\(2, 3\)"),
        ([ones(dtype=np.float64)], "float64"),
        ([np.full((2, 2), np.nan, np.float32)], "NaN"),
        ([np.full((2, 2), np.inf, np.float32)], "infinite"),
        ([], "0 gradients for a lookup of 1 tables"),
        ([ones(), ones()], "2 gradients"),
    ],
)
def test_bad_gradients_are_not_kept(server, grads, message):
    server.lookup()
    before = server.state()

    with pytest.raises(InvalidRequest, match=message):
        server.backward(grads)
    server.call("Apply", pb.ApplyRequest(context=CONTEXT))

    assert server.state() == before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("way", ["push", "context"])
@pytest.mark.parametrize("rule", ["reject", "clip", "allow"])
def test_each_rule_holds_for_pushes_and_for_contexts(server, rule, way, bad):
    rules = {"clip": BadGradients.clip(2.0), "allow": BadGradients.allow()}
    table = server.mesh.table(
        "ruled",
        rows=4,
        dim=2,
        optimizer=optim.Adagrad(lr=1.0),
        initializer=Initializer.constant(1.0),
        bad_gradients=rules.get(rule, BadGradients.reject()),
    )
    table.lookup([1])
    shard = server.store.table("ruled", server.mesh.connection.deadline())
    ((_, _, state),) = shard.blocks()
    grads = np.array([[bad, 1]], np.float32)

    def send():
        if way == "push":
            return server.push([np.array([1]), grads], tables=["ruled"])
        server.lookup([1], tables=["ruled"])
        server.backward([grads])
        return server.call("Apply", pb.ApplyRequest(context=CONTEXT))

    refused = pytest.raises(InvalidRequest, match="'ruled': a gradient is NaN or infinite")
    with refused if rule == "reject" else nullcontext():
        send()

    ((ids, rows, after),) = shard.blocks()
    assert ids.tolist() == [1]
    assert shard.steps == (rule != "reject")
    if rule == "reject":
        assert (rows == 1).all()
        np.testing.assert_equal(after, state)
    else:
        assert rows[0, 1] == pytest.approx(0, abs=1e-6)
        assert np.isfinite(rows).all() == (rule == "clip")


def test_gradients_of_rows_never_looked_up_are_refused(server):
    server.lookup(number=1)
    before = server.state()

    with pytest.raises(LookupNotFound, match="raw/1/1 made no lookup 2 here"):
        server.backward([ones()], number=2)
    with pytest.raises(LookupNotFound):
        server.backward(
            [ones()], context=context_pb2.ContextId(worker="x", incarnation=1, counter=1)
        )

    assert server.state() == before


def test_late_messages_do_not_revive_a_released_context(server):
    server.lookup()
    server.backward([ones()])
    server.call("ReleaseContext", owner_pb2.ReleaseContextRequest(context=CONTEXT))
    before = server.state()

    with pytest.raises(ContextReleased, match="open a new one"):
        server.lookup(number=2)
    with pytest.raises(ContextReleased):
        server.backward([ones()])
    with pytest.raises(ContextReleased):
        server.call("Apply", pb.ApplyRequest(context=CONTEXT))

    assert server.state() == before
    assert server.store.contexts.open_count() == 0


@pytest.mark.parametrize(
    ("arrays", "change", "error", "message"),
    [
        ([np.array([1, 1]), ones()], {}, InvalidRequest, "must not repeat"),
        ([np.array([10]), ones(1)], {}, IdOutOfRange, "id 10"),
        ([np.array([1]), ones(2)], {}, InvalidRequest, r"\(1, 2\)"),
        ([np.array([1]), ones(1, dtype=np.float16)], {}, InvalidRequest, "float16"),
        ([np.array([1]), np.full((1, 2), np.nan, np.float32)], {}, InvalidRequest, "NaN"),
        ([np.array([1])], {}, InvalidRequest, "1 arrays, 2 are expected"),
        ([np.array([1]), ones(1)], {"sequence": 0}, InvalidRequest, "sequence"),
        ([np.array([1]), ones(1)], {"worker": ""}, InvalidRequest, "worker"),
        ([np.array([1]), ones(1)], {"incarnation": 0}, InvalidRequest, "incarnation"),
        ([np.array([1]), ones(1)], {"tables": ["x"]}, TableNotFound, "'x'"),
        (
            [np.array([1]), ones(1), np.array([10]), ones(1)],
            {"tables": ["user", "user"]},
            IdOutOfRange,
            "id 10",
        ),
    ],
)
def test_a_bad_push_changes_nothing(server, arrays, change, error, message):
    before = server.state()

    with pytest.raises(error, match=message):
        server.push(arrays, **change)

    assert server.state() == before
    assert server.push([np.array([1]), ones(1)], sequence=1)


def test_a_step_that_does_not_come_ends_the_wait(server):
    server.call("StartRun", pb.StartRunRequest(generation=1, world_size=2, tables=["user"]))

    with pytest.raises(TimeoutError, match="some trainer's gradients are missing") as caught:
        server.lookup(mark=context_pb2.StepMark(generation=1, step=1), context=None)

    assert isinstance(caught.value.__cause__, StepPending)


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (context_pb2.StepMark(generation=2, step=0, rank=0), StaleGeneration),
        (context_pb2.StepMark(generation=1, step=0, rank=2), InvalidRequest),
        (context_pb2.StepMark(generation=1, step=10**12, rank=0), TimeoutError),
    ],
)
def test_an_invalid_mark_is_not_applied(server, mark, error):
    server.call("StartRun", pb.StartRunRequest(generation=1, world_size=1, tables=["user"]))
    server.lookup()
    server.backward([ones()])
    before = server.state()

    with pytest.raises(error):
        server.call("Apply", pb.ApplyRequest(context=CONTEXT, mark=mark), timeout_s=2.0)

    assert server.state() == before
    assert server.store.contexts.open_count() == 1


def test_a_table_reports_its_size(server):
    server.push([np.array([1]), ones(1)])

    held = server.call("InspectTable", pb.InspectTableRequest(table="user"))

    assert (held.rows, held.steps) == (10, 1)
    # One bit per row records whether it was used.
    assert held.bytes == 10 * 2 * 4 + 3
