"""The owner's table: forks, deletions in any order, late repetitions, lost workers."""

import random
import time

import pytest

from gradmesh.protos import limits
from gradmesh.protos.errors import LimitExceeded, RefNotFound
from gradmesh.sdk.rpc.ids import GlobalId, IdCounter, WorkerId
from gradmesh.sdk.rpc.rref.owners import OwnedValues

ME, USER, OTHER = WorkerId("me", 1), WorkerId("user", 2), WorkerId("other", 3)
KEY, FORK = GlobalId("user", 2, 1), GlobalId("user", 2, 2)


@pytest.fixture
def owners() -> OwnedValues:
    return OwnedValues(ME, IdCounter(ME))


def test_a_value_is_made_once_and_goes_with_its_last_fork(owners: OwnedValues) -> None:
    kept, first = owners.begin(KEY, FORK, USER)
    again, second = owners.begin(KEY, FORK, USER)

    assert kept is again
    assert (first, second) == (True, False)
    owners.fork(KEY, GlobalId("user", 2, 3), OTHER)
    owners.delete(KEY, FORK)
    owners.delete(KEY, FORK)
    assert owners.find(KEY) is kept
    owners.delete(KEY, GlobalId("user", 2, 3))
    with pytest.raises(RefNotFound, match="me keeps nothing for user's reference 1"):
        owners.find(KEY)
    with pytest.raises(RefNotFound):
        owners.begin(KEY, FORK, USER)
    assert owners.counts() == {"num_owner_rrefs": 0, "num_forks": 0, "num_pending_futures": 0}


def test_fetches_before_the_creation_share_its_entry(owners: OwnedValues) -> None:
    early = owners.find(KEY)

    kept, first = owners.begin(KEY, FORK, USER)

    assert early is kept
    assert first


def test_a_fork_may_overtake_the_creation(owners: OwnedValues) -> None:
    child = GlobalId("user", 2, 9)

    owners.fork(KEY, child, OTHER)
    kept, first = owners.begin(KEY, FORK, USER)
    owners.delete(KEY, FORK)

    assert first
    assert owners.find(KEY) is kept
    owners.delete(KEY, child)
    assert len(owners) == 0


@pytest.mark.parametrize("deleted_first", [True, False])
def test_a_value_lent_before_its_creation_stays_for_its_creator(
    owners: OwnedValues, deleted_first: bool
) -> None:
    early = owners.find(KEY)
    lent = owners.share(early, OTHER)

    if deleted_first:
        owners.delete(KEY, lent)
    kept, first = owners.begin(KEY, FORK, USER)
    owners.delete(KEY, lent)

    assert (kept, first) == (early, True)
    assert owners.find(KEY) is kept
    owners.delete(KEY, FORK)
    assert owners.counts() == {"num_owner_rrefs": 0, "num_forks": 0, "num_pending_futures": 0}


def test_a_worker_that_lends_to_itself_before_the_creation_takes_it_back(
    owners: OwnedValues,
) -> None:
    owners.take_back(KEY, owners.share(owners.find(KEY), ME))
    owners.begin(KEY, FORK, USER)
    owners.delete(KEY, FORK)

    assert owners.counts() == {"num_owner_rrefs": 0, "num_forks": 0, "num_pending_futures": 0}


def test_a_fork_that_was_deleted_does_not_come_back(owners: OwnedValues) -> None:
    owners.begin(KEY, FORK, USER)
    child = GlobalId("user", 2, 9)

    owners.delete(KEY, child)
    owners.fork(KEY, child, OTHER)
    owners.delete(KEY, FORK)

    assert len(owners) == 0


def test_a_creation_that_comes_after_its_deletion_leaves_nothing(owners: OwnedValues) -> None:
    owners.delete(KEY, FORK)

    with pytest.raises(RefNotFound, match="it was deleted"):
        owners.begin(KEY, FORK, USER)

    assert owners.counts() == {"num_owner_rrefs": 0, "num_forks": 0, "num_pending_futures": 0}


def test_a_creation_that_comes_after_its_deletion_is_made_for_others(owners: OwnedValues) -> None:
    child = GlobalId("user", 2, 9)
    owners.fork(KEY, child, OTHER)
    owners.delete(KEY, FORK)

    _, first = owners.begin(KEY, FORK, USER)

    assert first
    owners.delete(KEY, child)
    assert len(owners) == 0


def test_references_of_lost_workers_are_collected(owners: OwnedValues) -> None:
    owners.begin(KEY, FORK, USER)
    owners.fork(KEY, GlobalId("user", 2, 5), OTHER)

    assert owners.collect(lambda worker: worker == USER) == 1
    assert len(owners) == 1
    assert owners.collect(lambda worker: worker == OTHER) == 1
    assert len(owners) == 0


def test_only_holders_of_known_incarnations_are_reported(owners: OwnedValues) -> None:
    owners.begin(KEY, FORK, USER)
    owners.fork(KEY, GlobalId("user", 2, 5), OTHER)
    owners.fork(KEY, GlobalId("user", 2, 6), WorkerId("somebody", 0))

    assert owners.openers() == {tuple(USER): 0, tuple(OTHER): 0}
    assert owners.drop_worker(*USER) == 1
    assert owners.drop_worker(*OTHER) == 1
    assert owners.openers() == {}
    assert len(owners) == 1


def test_a_local_value_may_be_shared_again(owners: OwnedValues) -> None:
    kept, _ = owners.begin(KEY, FORK, USER)
    owners.delete(KEY, FORK)

    fork = owners.share(kept, OTHER)

    assert owners.find(KEY) is kept
    assert owners.report() == [f"{KEY} held by other"]
    owners.delete(KEY, fork)
    assert len(owners) == 0


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_repeated_messages_ends_empty(owners: OwnedValues, seed: int) -> None:
    chance = random.Random(seed)
    owners.begin(KEY, FORK, USER)
    forks = [GlobalId("user", 2, 10 + n) for n in range(10)]
    messages = [("fork", fork) for fork in forks] * 2
    chance.shuffle(messages)
    for _, fork in messages:
        owners.fork(KEY, fork, OTHER)
        if chance.random() < 0.3:
            owners.delete(KEY, fork)
    for fork in chance.sample([*forks, FORK], 11):
        owners.delete(KEY, fork)

    assert len(owners) == 0


def test_unused_references_of_processes_that_never_were_members_expire(owners: OwnedValues) -> None:
    owners.begin(KEY, FORK, USER)
    owners.fork(KEY, GlobalId("user", 2, 5), OTHER)
    later = time.monotonic() + 601

    assert owners.collect(lambda _: False, lambda worker: worker == USER) == 0
    assert owners.collect(lambda _: False, lambda worker: worker == USER, now=later) == 1
    assert owners.holders() == {OTHER}
    owners.delete(KEY, GlobalId("user", 2, 5))
    assert len(owners) == 0


def test_entries_whose_creation_never_arrives_expire_with_their_references(
    owners: OwnedValues,
) -> None:
    owners.fork(KEY, FORK, USER)

    assert owners.expire() == 1
    assert owners.expire(time.monotonic() + 601) == 0
    assert owners.counts()["num_pending_futures"] == 0
    assert owners._held.total == owners._expected.total == 0


def test_references_are_bounded_for_one_holder_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REFERENCES", limits.REFERENCES._replace(total=4, per_caller=2))
    owners = OwnedValues(ME, IdCounter(ME))
    for counter in (1, 3):
        owners.begin(GlobalId("user", 2, counter), GlobalId("user", 2, counter + 1), USER)
    third = GlobalId("user", 2, 5)

    with pytest.raises(LimitExceeded, match="references: 2 are kept for 'user'"):
        owners.begin(third, third, USER)
    with pytest.raises(LimitExceeded):
        owners.fork(KEY, third, USER)
    kept = owners.reserve(GlobalId("me", 1, 1))
    owners.share(kept, OTHER)
    owners.fork(KEY, FORK, USER)  # the same one again

    assert len(owners) == 3
    assert owners.drop_worker(*USER) == 2
    owners.begin(third, third, USER)
    assert owners._held.total == 2
