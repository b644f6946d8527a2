import select

import pytest

from gradmesh.trainer.process_group.abort_signal import AbortSignal


@pytest.fixture
def abort_signal():
    abort_signal = AbortSignal()
    yield abort_signal
    abort_signal.close()


def test_open_latch_is_silent(abort_signal):
    abort_signal.raise_if_set()

    assert abort_signal.error is None
    assert select.select([abort_signal], [], [], 0)[0] == []


def test_tripped_latch_raises_its_first_error_and_turns_readable(abort_signal):
    abort_signal.set(ValueError("first"))
    abort_signal.set(KeyError("second"))

    assert select.select([abort_signal], [], [], 0)[0] == [abort_signal]
    with pytest.raises(ValueError, match="first"):
        abort_signal.raise_if_set()


def test_closed_latch_still_takes_an_error(abort_signal):
    abort_signal.close()
    abort_signal.close()

    abort_signal.set(ValueError("late"))

    assert isinstance(abort_signal.error, ValueError)
