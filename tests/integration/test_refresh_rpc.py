"""The Refresh rpc, which updates prefetched rows, called directly."""

import numpy as np
import pytest

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LookupNotFound,
    StaleGeneration,
    StaleShardMap,
)
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from tests.integration.one_server import CONTEXT, OneServer, ones

OTHER = context_pb2.ContextId(worker="raw", incarnation=1, counter=78)
AHEAD = context_pb2.ContextId(worker="raw", incarnation=1, counter=77)


@pytest.fixture
def server(make_cluster, raw):
    return OneServer(make_cluster(parameter_servers=1), raw)


def refresh(server, *, lookup=1, timeout_s=20.0, **fields):
    fields = {"shard_epoch": server.epoch, "context": CONTEXT, "lookup": 1} | fields
    request = pb.RefreshRequest(ahead_context=AHEAD, ahead_lookup=lookup, **fields)
    places, rows = server.call("Refresh", request, timeout_s).arrays
    return places.tolist(), rows.tolist()


def test_rows_read_ahead_are_refreshed_as_often_as_asked(server):
    server.lookup((1, 2, 3), context=AHEAD, ahead=True)
    server.push([np.array([3, 1]), ones(2)])

    answers = [refresh(server) for _ in range(3)]
    server.backward([ones(3)])
    server.call("Apply", pb.ApplyRequest(context=CONTEXT))

    assert answers == [([0, 2], [[0, 0], [0, 0]])] * 3
    assert server.state()[0][1:4] == [[-1, -1], [0, 0], [-1, -1]]
    assert server.store.contexts.open_count() == 0


def peek(server, *, timeout_s=20.0, **fields):
    fields = {"shard_epoch": server.epoch, "peek": True} | fields
    fields = {"ahead_lookup": 1} | fields
    request = pb.RefreshRequest(ahead_context=AHEAD, **fields)
    answer = server.call("Refresh", request, timeout_s)
    return [array.tolist() for array in answer.arrays], answer.message.count


def test_a_peek_leaves_rows_read_ahead_where_they_are_and_the_refresh_sends_the_rest(server):
    server.lookup((1, 2, 3), context=AHEAD, ahead=True)
    server.push([np.array([3, 1]), ones(2)])

    first, again = peek(server), peek(server)
    server.push([np.array([2]), ones(1)], sequence=2)
    later = refresh(server, since=first[1])
    server.backward([ones(3)])
    server.call("Apply", pb.ApplyRequest(context=CONTEXT))

    assert first == again
    assert first[0] == [[0, 2], [[0, 0], [0, 0]]]
    assert later == ([1], [[0, 0]])
    assert server.state()[0][1:4] == [[-1, -1]] * 3
    assert server.store.contexts.open_count() == 0


def test_when_nothing_has_changed_since_a_peek_nothing_is_sent(server):
    server.push([np.array([0]), ones(1)])
    server.lookup((1, 2), context=AHEAD, ahead=True)
    _, count = peek(server)
    request = pb.RefreshRequest(
        ahead_context=AHEAD, ahead_lookup=1, context=CONTEXT, lookup=1, since=count,
        shard_epoch=server.epoch,
    )  # fmt: skip

    assert [server.call("Refresh", request).arrays for _ in range(2)] == [[], []]


def test_a_peek_waits_for_earlier_steps_and_begins_none(server):
    run = pb.StartRunRequest(generation=1, world_size=1, tables=["user"])
    server.call("StartRun", run)
    mark = context_pb2.StepMark(generation=1, step=1)
    server.lookup(context=AHEAD, ahead=True)

    with pytest.raises(DeadlineExceeded, match="step 1 needs 1"):
        peek(server, mark=mark, timeout_s=2.0)
    first = context_pb2.StepMark(generation=1)
    server.call("Apply", pb.ApplyRequest(context=OTHER, mark=first))
    peek(server, mark=mark)

    assert server.store.steps.stop()[0] == 1
    server.store.steps.release()
    refresh(server, mark=mark)
    assert server.store.steps.stop()[0] == 2


def test_an_invalid_refresh_changes_nothing(server):
    server.lookup(context=AHEAD, ahead=True)
    before = server.state()

    with pytest.raises(LookupNotFound):
        refresh(server, lookup=2)
    with pytest.raises(StaleShardMap):
        refresh(server, shard_epoch=server.epoch + 1)
    with pytest.raises(StaleGeneration):
        refresh(server, mark=context_pb2.StepMark(generation=5))
    with pytest.raises(InvalidRequest, match="needs a context"):
        server.lookup(context=None, ahead=True)
    with pytest.raises(InvalidRequest, match="leave the context out"):
        peek(server, context=CONTEXT)
    with pytest.raises(LookupNotFound):
        peek(server, ahead_lookup=2)
    for ask in (peek, refresh):
        with pytest.raises(InvalidRequest, match="changes were made"):
            ask(server, since=2**63)

    assert server.state() == before
    assert refresh(server) == ([], [])


def test_a_lookup_ahead_does_not_wait_and_its_refresh_does(server):
    run = pb.StartRunRequest(generation=1, world_size=1, tables=["user"])
    server.call("StartRun", run)
    mark = context_pb2.StepMark(generation=1, step=1)

    rows = server.lookup(context=AHEAD, ahead=True, mark=mark)
    with pytest.raises(DeadlineExceeded, match="step 1 needs 1"):
        refresh(server, mark=mark, timeout_s=2.0)

    assert rows.tolist() == [[1, 1], [1, 1]]
    first = context_pb2.StepMark(generation=1)
    server.call("Apply", pb.ApplyRequest(context=OTHER, mark=first))
    assert refresh(server, mark=mark) == ([], [])
