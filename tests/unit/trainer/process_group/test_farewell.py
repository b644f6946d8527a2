import pytest

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupClosed,
    PeerLost,
)
from gradmesh.trainer.process_group.message import MessageKind, shutdown_error, shutdown_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PeerLost("gone", rank=3, address="x"), (MessageKind.PEER_LOST, 3)),
        (CollectiveTimeout("late", ranks=[2, 4]), (MessageKind.TIMED_OUT, 2)),
        (CollectiveTimeout("late"), (MessageKind.TIMED_OUT, 1)),
        (CollectiveMismatch("other"), (MessageKind.MISMATCH, 1)),
        (GroupClosed("over"), (MessageKind.CLOSED, 1)),
        (GroupAborted("stop"), (MessageKind.ABORTED, 1)),
        (ZeroDivisionError(), (MessageKind.ABORTED, 1)),
    ],
)
def test_reason_names_the_rank_it_is_about(error, reason):
    assert shutdown_reason(error, 1) == reason


@pytest.mark.parametrize(
    ("kind", "about", "error", "named"),
    [
        (MessageKind.PEER_LOST, 3, PeerLost, 3),
        (MessageKind.PEER_LOST, 1, PeerLost, 1),
        (MessageKind.ABORTED, 1, PeerLost, 1),
        (MessageKind.CLOSED, 1, PeerLost, 1),
    ],
)
def test_peers_blame_the_right_rank(kind, about, error, named):
    found = shutdown_error(kind, about, 1, "there")

    assert isinstance(found, error)
    assert found.rank == named


def test_timeout_of_a_peer_names_whom_it_waited_for():
    found = shutdown_error(MessageKind.TIMED_OUT, 4, 1, "there")

    assert isinstance(found, CollectiveTimeout)
    assert found.ranks == (4,)
