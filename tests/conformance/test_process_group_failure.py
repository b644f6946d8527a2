"""What every process group of several ranks MUST do when one of them fails or disagrees."""

import time

import numpy as np
import pytest

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupClosed,
    PeerLost,
)


def test_abort_wakes_the_waiting_rank_and_its_peers(several_ranks):
    waiting = [group.barrier() for group in several_ranks.groups[1:]]
    queued = [group.barrier() for group in several_ranks.groups[1:]]

    several_ranks.groups[1].abort()

    for work in (waiting[0], queued[0]):
        with pytest.raises(GroupAborted):
            work.wait(120)
    for work in [*waiting[1:], *queued[1:]]:
        with pytest.raises(PeerLost) as caught:
            work.wait(120)
        assert caught.value.rank == 1


def test_close_ends_pending_works(several_ranks):
    pending = several_ranks.groups[0].barrier()

    several_ranks.groups[0].close()

    with pytest.raises(GroupClosed):
        pending.wait(120)


def test_peers_name_the_rank_that_closed(several_ranks):
    several_ranks.run(lambda group: group.barrier().wait())
    several_ranks.groups[0].close()

    errors = several_ranks.errors(lambda group: group.barrier().wait(120) if group.rank else None)

    for error in errors[1:]:
        assert isinstance(error, PeerLost)
        assert error.rank == 0
        assert "rank 0" in str(error)
        where = {"shm": "process ", "tcp": "127.0.0.1:", "nccl": "rank 0", "mpi": "MPI rank 0"}[
            several_ranks.backend
        ]
        assert error.address.startswith(where)


def test_wait_may_time_out_while_the_collective_continues(several_ranks):
    work = several_ranks.groups[0].barrier()

    with pytest.raises(CollectiveTimeout, match="barrier"):
        work.wait(0.05)

    others = [group.barrier() for group in several_ranks.groups[1:]]
    for pending in [work, *others]:
        pending.wait(120)


@pytest.mark.parametrize("backend", ["tcp", "shm", "mpi", "nccl"])
@pytest.mark.parametrize("size", [2, 3])
def test_silent_rank_is_named_within_the_timeout(meet, backend, size):
    ranks = meet(backend, size, 0.5)
    started = time.monotonic()

    works = [group.all_reduce(np.zeros(100_000)) for group in ranks.groups[:-1]]
    queued = [group.all_reduce(np.zeros(10)) for group in ranks.groups[:-1]]

    for work in [*works, *queued]:
        with pytest.raises(CollectiveTimeout, match=f"rank {size - 1}") as caught:
            work.wait(120)
        assert caught.value.ranks == (size - 1,)
    assert time.monotonic() - started < 10.0
    for group in ranks.groups[:-1]:
        with pytest.raises(CollectiveTimeout):
            group.barrier()


@pytest.mark.parametrize(
    "calls",
    [
        lambda group: group.all_reduce(np.zeros(4 + (group.rank == 0))),
        lambda group: group.all_reduce(np.zeros(4, "f4" if group.rank else "f8")),
        lambda group: group.all_reduce(np.zeros(4), "sum" if group.rank else "max"),
        lambda group: group.all_reduce(np.zeros(90_000 + (group.rank == 0))),
        lambda group: group.barrier() if group.rank else group.all_reduce(np.zeros(4)),
        lambda group: group.all_gather(
            [np.zeros(4 + (group.rank == 0)) for _ in range(group.size)],
            np.zeros(4 + (group.rank == 0)),
        ),
    ],
    ids=["count", "dtype", "op", "big", "collective", "gather"],
)
def test_ranks_that_disagree_all_raise(several_ranks, calls):
    errors = several_ranks.errors(lambda group: calls(group).wait(120))

    assert [type(error) for error in errors] == [CollectiveMismatch] * several_ranks.size


@pytest.mark.parametrize("count", [10, 500_000])
def test_a_rank_that_leaves_because_of_another_is_not_named(meet, count):
    ranks = meet("tcp", 3, 1.0)
    ranks.groups[0]._links[1].close()

    errors = ranks.errors(
        lambda group: group.all_reduce(np.zeros(count)).wait(120) if group.rank else None
    )

    assert all(isinstance(error, PeerLost | CollectiveTimeout) for error in errors[1:])
    named = [e.ranks if isinstance(e, CollectiveTimeout) else (e.rank,) for e in errors[1:]]
    assert named == [(0,), (0,)]


def test_a_rank_that_waits_for_another_is_not_named(meet):
    ranks = meet("tcp", 3, 0.5)
    # Rank 1 is one collective ahead of rank 2 and waits for it; rank 2 waits for rank 0.
    first = [group.broadcast(np.zeros(3), 1) for group in ranks.groups[1:]]
    for work in first:
        work.wait(120)
    behind = ranks.groups[2].broadcast(np.zeros(3), 0)
    ahead = ranks.groups[1].barrier()

    for work in (behind, ahead):
        with pytest.raises(CollectiveTimeout) as caught:
            work.wait(120)
        assert caught.value.ranks == (0,)
