import pytest

from gradmesh.protos import errors as wire
from gradmesh.trainer import errors
from gradmesh.trainer.job.job import is_recoverable


@pytest.mark.parametrize(
    "error",
    [
        errors.PeerLost("gone", rank=1, address="a:1"),
        errors.CollectiveTimeout("silent", ranks=[1]),
        errors.HandshakeRefused("who are you"),
        wire.StaleGeneration("old"),
        wire.StaleShardMap("old"),
        wire.Unreachable("gone"),
        wire.ShardNotReady("soon"),
        wire.NotMember("forgotten"),
        wire.ContextReleased("forgotten"),
        wire.LookupNotFound("forgotten"),
        wire.DeadlineExceeded("late"),
        wire.Draining("leaving"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_peer_is_recoverable(error):
    assert is_recoverable(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.CollectiveMismatch("different"),
        errors.MissingGradient("unused"),
        errors.TrainersMissing("alone"),
        wire.TableConflict("other table"),
        wire.InvalidRequest("bug"),
        wire.StoreFull("full"),
        wire.Unauthenticated("token"),
        wire.InternalError("bug"),
        ValueError("bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_usage_error_is_not_recoverable(error):
    assert not is_recoverable(error)
