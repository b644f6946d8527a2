"""The contexts of one process."""

import threading

import pytest

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import ContextReleased, InvalidRequest
from gradmesh.sdk.autograd import tombstones
from gradmesh.sdk.autograd.current import bound, carry, current_context
from gradmesh.sdk.autograd.registry import CONTEXTS, ContextRegistry, find_context
from gradmesh.sdk.autograd.tombstones import Tombstones


def context_id(counter=1, worker="w", incarnation=3):
    return context_pb2.ContextId(worker=worker, incarnation=incarnation, counter=counter)


def test_a_context_begins_with_the_first_message_and_stays_the_same():
    contexts = ContextRegistry()

    first = contexts.get_or_create(context_id())

    assert contexts.get_or_create(context_id()) is first
    assert contexts.find(context_id()) is first
    assert first.key == ("w", 3, 1)
    assert first.name == "w/3/1"
    assert contexts.counters() == {"num_autograd_contexts": 1, "num_current_backward_passes": 0}


def test_a_released_context_is_never_revived():
    contexts = ContextRegistry()
    contexts.get_or_create(context_id())

    released = [contexts.release(context_id()), contexts.release(context_id())]

    assert released == [True, False]
    for late in (contexts.get_or_create, contexts.find):
        with pytest.raises(ContextReleased, match="w/3/1"):
            late(context_id())
    assert contexts.open_count() == 0


def test_a_release_that_comes_before_the_first_message_counts():
    contexts = ContextRegistry()
    contexts.release(context_id())

    with pytest.raises(ContextReleased):
        contexts.get_or_create(context_id())


def test_contexts_of_a_former_incarnation_are_released():
    contexts = ContextRegistry()
    for counter in (1, 2):
        contexts.get_or_create(context_id(counter))
    other = contexts.get_or_create(context_id(1, worker="x"))

    newer = contexts.get_or_create(context_id(1, incarnation=4))

    assert contexts.open_count() == 2
    assert {newer, other} == {contexts.find(newer.id), contexts.find(other.id)}
    with pytest.raises(ContextReleased):
        contexts.get_or_create(context_id(2))


def test_contexts_of_a_lost_worker_are_dropped():
    contexts = ContextRegistry()
    contexts.get_or_create(context_id(1))
    contexts.get_or_create(context_id(2))
    contexts.get_or_create(context_id(1, worker="x"))

    assert contexts.openers() == {("w", 3): 2, ("x", 3): 1}
    assert contexts.drop_worker("w", 3) == 2
    assert contexts.openers() == {("x", 3): 1}


@pytest.mark.parametrize("wrong", [{"counter": 0}, {"worker": ""}, {"incarnation": 0}])
def test_values_that_are_not_ids_are_refused(wrong):
    with pytest.raises(InvalidRequest):
        ContextRegistry().get_or_create(context_id(**wrong))


def test_tombstones_are_bounded_and_keep_the_newest(monkeypatch):
    monkeypatch.setattr(tombstones, "_TOMBSTONES", 16)
    dead = Tombstones()
    for counter in range(1, 200):
        dead.add(5, counter)

    assert all(dead.has(5, counter) for counter in range(1, 200))
    assert not dead.has(5, 200)
    assert dead.has(4, 9999)
    assert not dead.has(6, 1)
    assert len(dead._counters) <= 17


def test_a_context_is_found_by_its_name():
    ctx = CONTEXTS.get_or_create(context_id(77, worker="a/b"))

    assert find_context(ctx.name) is ctx
    CONTEXTS.release(ctx.id)
    with pytest.raises(ContextReleased):
        find_context(ctx.name)
    for wrong in ("", "w", "w/1", "/1/1", "w/x/1", "w/1/-1"):
        with pytest.raises(InvalidRequest, match="not the name of a context"):
            find_context(wrong)


def test_a_thread_has_no_context_unless_one_is_carried_there():
    ctx = ContextRegistry().get_or_create(context_id())
    seen = []

    def look():
        seen.append(current_context())

    with bound(ctx):
        threads = [threading.Thread(target=look), threading.Thread(target=carry(look))]
        for thread in threads:
            thread.start()
            thread.join(10)
        with ctx.bind():
            look()
    look()

    assert seen == [None, ctx, ctx, None]
