import threading
from collections.abc import Callable
from typing import Any

import pytest

from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.owner.refs import Refs
from gradmesh.sdk.transport.deadline import Deadline

KEY = ("trainer-0", 1, 1)


def soon() -> Deadline:
    return Deadline.after(10)


class Maker:
    """Makes a value when it may, and counts how often it was asked."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.runs = outcome, 0
        self.entered, self.free = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.runs += 1
        self.entered.set()
        self.free.wait(10)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def in_threads(count: int, task: Callable[[], Any]) -> tuple[list[threading.Thread], list[Any]]:
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(task())
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, outcomes


def test_a_value_is_kept_until_it_is_deleted() -> None:
    refs = Refs()

    refs.create(KEY, lambda: 7, soon())
    refs.create(KEY, lambda: 8, soon())

    assert refs.fetch(KEY, soon()) == 7
    assert len(refs) == 1
    refs.delete(KEY)
    with pytest.raises(KeyError):
        refs.fetch(KEY, soon())
    assert len(refs) == 0


def test_values_asked_for_at_once_are_made_once() -> None:
    refs, maker = Refs(), Maker(7)

    threads, outcomes = in_threads(8, lambda: refs.create(KEY, maker, soon()))
    assert maker.entered.wait(10)
    maker.free.set()
    for thread in threads:
        thread.join(10)

    assert maker.runs == 1
    assert outcomes == [None] * 8


def test_a_failure_is_told_to_all_and_forgotten() -> None:
    refs, maker = Refs(), Maker(ValueError("no"))

    threads, outcomes = in_threads(1, lambda: refs.create(KEY, maker, soon()))
    assert maker.entered.wait(10)
    more, others = in_threads(1, lambda: refs.fetch(KEY, soon()))
    maker.free.set()
    for thread in threads + more:
        thread.join(10)

    assert [str(error) for error in outcomes] == ["no"]
    assert type(others[0]) in (ValueError, KeyError)
    refs.create(KEY, lambda: 8, soon())
    assert refs.fetch(KEY, soon()) == 8


def test_whoever_waits_for_a_value_waits_until_the_deadline() -> None:
    refs, maker = Refs(), Maker(7)
    threads, _ = in_threads(1, lambda: refs.create(KEY, maker, soon()))
    assert maker.entered.wait(10)

    with pytest.raises(DeadlineExceeded, match="still being made"):
        refs.create(KEY, maker, Deadline.after(0.05))
    with pytest.raises(DeadlineExceeded, match="still being made"):
        refs.fetch(KEY, Deadline.after(0.05))

    maker.free.set()
    threads[0].join(10)
    assert refs.fetch(KEY, soon()) == 7


def test_a_late_repetition_does_not_make_a_deleted_value_again() -> None:
    refs, maker = Refs(), Maker(7)
    refs.create(KEY, lambda: 7, soon())
    refs.delete(KEY)

    refs.create(KEY, maker, soon())

    assert maker.runs == 0
    assert len(refs) == 0


def test_a_value_deleted_while_it_is_made_is_not_kept() -> None:
    refs, maker = Refs(), Maker(7)
    threads, outcomes = in_threads(1, lambda: refs.create(KEY, maker, soon()))
    assert maker.entered.wait(10)

    refs.delete(KEY)
    maker.free.set()
    threads[0].join(10)

    assert outcomes == [None]
    assert len(refs) == 0
