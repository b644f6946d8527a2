"""The collectives that one worker coordinates."""

import numpy as np
import pytest

from gradmesh.protos import limits
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest, LimitExceeded
from gradmesh.sdk.rpc.collective import CollectiveRegistry

NAMES = ("a", "b")


@pytest.fixture
def gathers():
    made = CollectiveRegistry()
    yield made
    made.close()


def test_one_thread_ends_all_that_are_late(gathers, own_threads):
    late = [gathers.arrive(NAMES, number, "a", None, 0.05) for number in range(50)]
    patient = gathers.arrive(NAMES, 99, "a", None, 600.0)

    for future in late:
        with pytest.raises(DeadlineExceeded, match=r"b did not arrive within 0\.05 s"):
            future.wait()

    assert len(own_threads.names()) <= 1
    assert gathers.waiting() == 1
    gathers.arrive(NAMES, 99, "b", 5, 600.0)
    assert patient.wait() == {"a": None, "b": 5}


def test_a_later_one_that_is_more_urgent_ends_first(gathers):
    patient = gathers.arrive(NAMES, 1, "a", None, 600.0)
    urgent = gathers.arrive(NAMES, 2, "a", None, 0.05)

    with pytest.raises(DeadlineExceeded):
        urgent.wait()
    assert not patient.done()


def test_gathers_and_their_bytes_are_bounded_and_come_back(monkeypatch):
    monkeypatch.setattr(limits, "GATHERS", limits.GATHERS._replace(total=3, per_caller=2))
    monkeypatch.setattr(limits, "GATHER_BYTES", limits.GATHER_BYTES._replace(total=10_000))
    gathers = CollectiveRegistry()
    for number in range(2):
        gathers.arrive(NAMES, number, "a", None, 600.0)

    with pytest.raises(LimitExceeded, match="2 are kept for 'a'"):
        gathers.arrive(NAMES, 2, "a", None, 600.0)
    with pytest.raises(LimitExceeded, match="bytes of gathers"):
        gathers.arrive(NAMES, 0, "b", {"x": [np.zeros(2000)]}, 600.0)
    gathers.arrive(NAMES, 0, "b", b"x" * 1000, 600.0)
    gathers.arrive(NAMES, 2, "a", "x" * 1000, 600.0)
    gathers.close()

    assert (gathers._opened.total, gathers._bytes.total, gathers.waiting()) == (0, 0, 0)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_wait_has_an_end(gathers, timeout_s):
    with pytest.raises(InvalidRequest, match="cannot wait"):
        gathers.arrive(NAMES, 1, "a", None, timeout_s)
