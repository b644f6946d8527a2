import pytest

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupClosed,
    PeerLost,
)
from gradmesh.trainer.process_group.farewell import Kind, error_of, reason_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PeerLost("gone", rank=3, address="x"), (Kind.PEER_LOST, 3)),
        (CollectiveTimeout("late", ranks=[2, 4]), (Kind.TIMED_OUT, 2)),
        (CollectiveTimeout("late"), (Kind.TIMED_OUT, 1)),
        (CollectiveMismatch("other"), (Kind.MISMATCH, 1)),
        (GroupClosed("over"), (Kind.CLOSED, 1)),
        (GroupAborted("stop"), (Kind.ABORTED, 1)),
        (ZeroDivisionError(), (Kind.ABORTED, 1)),
    ],
)
def test_reason_names_the_rank_it_is_about(error, reason):
    assert reason_of(error, 1) == reason


@pytest.mark.parametrize(
    ("kind", "about", "error", "named"),
    [
        (Kind.PEER_LOST, 3, PeerLost, 3),
        (Kind.PEER_LOST, 1, PeerLost, 1),
        (Kind.ABORTED, 1, PeerLost, 1),
        (Kind.CLOSED, 1, PeerLost, 1),
    ],
)
def test_peers_blame_the_right_rank(kind, about, error, named):
    found = error_of(kind, about, 1, "there")

    assert isinstance(found, error)
    assert found.rank == named


def test_timeout_of_a_peer_names_whom_it_waited_for():
    found = error_of(Kind.TIMED_OUT, 4, 1, "there")

    assert isinstance(found, CollectiveTimeout)
    assert found.ranks == (4,)
