import select

import pytest

from gradmesh.trainer.process_group.abort_signal import AbortSignal


@pytest.fixture
def latch():
    latch = AbortSignal()
    yield latch
    latch.close()


def test_open_latch_is_silent(latch):
    latch.check()

    assert latch.error is None
    assert select.select([latch], [], [], 0)[0] == []


def test_tripped_latch_raises_its_first_error_and_turns_readable(latch):
    latch.trip(ValueError("first"))
    latch.trip(KeyError("second"))

    assert select.select([latch], [], [], 0)[0] == [latch]
    with pytest.raises(ValueError, match="first"):
        latch.check()


def test_closed_latch_still_takes_an_error(latch):
    latch.close()
    latch.close()

    latch.trip(ValueError("late"))

    assert isinstance(latch.error, ValueError)
