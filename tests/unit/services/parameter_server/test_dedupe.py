import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.protos.errors import InvalidRequest
from gradmesh.services.parameter_server import dedupe as module
from gradmesh.services.parameter_server.dedupe import DedupeTable


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 8)), max_size=60))
def test_every_push_counts_once_in_any_order(sent):
    pushes = DedupeTable()
    applied = []

    for worker, number in sent:
        pushes.once((worker, 1, number), lambda key=(worker, number): applied.append(key))

    assert sorted(applied) == sorted(set(sent))


def test_a_failed_push_may_be_repeated():
    pushes = DedupeTable()

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pushes.once(("w", 1, 1), fail)

    assert pushes.once(("w", 1, 1), lambda: None)


def test_a_push_older_than_the_dedupe_table_is_refused(monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 8)
    pushes = DedupeTable()
    for number in range(2, 12):
        assert pushes.once(("w", 1, number), lambda: None)

    with pytest.raises(InvalidRequest, match="push 1 of 'w' is older"):
        pushes.once(("w", 1, 1), lambda: None)

    assert not pushes.once(("w", 1, 11), lambda: None)


def test_a_new_incarnation_counts_from_the_beginning_and_ends_the_old():
    pushes = DedupeTable()
    pushes.once(("w", 1, 5), lambda: None)

    assert pushes.once(("w", 2, 5), lambda: None)
    assert not pushes.once(("w", 1, 6), lambda: None)


def test_a_failing_first_push_of_a_new_incarnation_does_not_end_the_old():
    pushes = DedupeTable()
    pushes.once(("w", 1, 5), lambda: None)

    with pytest.raises(ZeroDivisionError):
        pushes.once(("w", 2, 1), lambda: 1 / 0)

    assert pushes.once(("w", 1, 6), lambda: None)


@pytest.mark.parametrize("sender", [("", 1, 1), ("w", 0, 1), ("w", 1, 0)])
def test_a_push_has_a_sender(sender):
    with pytest.raises(InvalidRequest, match="set all three"):
        DedupeTable().once(sender, lambda: None)


def test_the_same_push_from_many_threads_counts_once():
    pushes = DedupeTable()
    applied = []
    together = threading.Barrier(8, timeout=120)

    def send():
        together.wait()
        for number in range(1, 50):
            pushes.once(("w", 1, number), lambda number=number: applied.append(number))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert sorted(applied) == list(range(1, 50))
