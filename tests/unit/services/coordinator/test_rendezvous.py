import pytest

from gradmesh.protos import limits
from gradmesh.protos.errors import (
    InvalidRequest,
    KeyConflict,
    KeyMissing,
    LimitExceeded,
    RoundOpen,
    StaleGeneration,
)
from gradmesh.services.coordinator.rendezvous import Rendezvous


def formed(world_size=2, memory=b""):
    rendezvous = Rendezvous(world_size, memory)
    for i in range(world_size):
        rendezvous.join(f"t-{i}", 1, 0)
    return rendezvous


def test_ranks_follow_names_not_arrival():
    rendezvous = Rendezvous(3)

    joined = [rendezvous.join(name, 1, 0) for name in ("t-10", "t-9", "t-1")]

    assert joined == [False, False, True]
    assert [rendezvous.rank_of(name, 1) for name in ("t-1", "t-9", "t-10")] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_an_open_round_lists_the_joined_trainers():
    rendezvous = Rendezvous(2)
    rendezvous.join("t-0", 1, 0)

    with pytest.raises(RoundOpen, match="1 of 2 trainers have joined generation 1: t-0"):
        rendezvous.rank_of("t-0", 1)


def test_joining_again_keeps_the_rank():
    rendezvous = formed()

    assert not rendezvous.join("t-1", 1, 0)
    assert rendezvous.rank_of("t-1", 1) == (1, 1)


@pytest.mark.parametrize(("incarnation", "after"), [(1, 1), (2, 0)])
def test_a_trainer_that_rejoins_ends_the_generation(incarnation, after):
    rendezvous = formed()
    rendezvous.put(1, "key", b"value")

    rendezvous.join("t-0", incarnation, after)

    assert (rendezvous.current, rendezvous.formed) == (2, False)
    with pytest.raises(StaleGeneration, match="generation 1 has ended, 2 is forming; join again"):
        rendezvous.get(1, "key")


def test_a_surplus_trainer_waits_for_a_vacant_rank():
    rendezvous = formed()

    rendezvous.join("t-2", 1, 0)
    with pytest.raises(RoundOpen):
        rendezvous.rank_of("t-2", 1)
    stood = rendezvous.formed
    rendezvous.drop("t-0")
    rendezvous.join("t-2", 1, 0)
    rendezvous.join("t-1", 1, 1)

    assert stood
    assert rendezvous.rank_of("t-1", 1) == (2, 0)
    assert rendezvous.rank_of("t-2", 1) == (2, 1)


def test_a_lost_trainer_ends_a_formed_generation_only():
    rendezvous = Rendezvous(2)
    rendezvous.join("t-0", 1, 0)

    assert not rendezvous.drop("t-0")
    assert not rendezvous.drop("stranger")
    assert rendezvous.current == 1
    assert dict(rendezvous.joined) == {}
    assert formed().drop("t-1")


def test_keys_belong_to_one_generation():
    rendezvous = formed()
    rendezvous.put(1, "key", b"value")
    rendezvous.put(1, "key", b"value")

    with pytest.raises(KeyConflict):
        rendezvous.put(1, "key", b"other")
    with pytest.raises(KeyMissing):
        rendezvous.get(1, "nothing")
    with pytest.raises(StaleGeneration):
        rendezvous.put(2, "key", b"value")
    assert rendezvous.get(1, "key") == b"value"

    rendezvous.drop("t-0")
    rendezvous.join("t-0", 1, 1)
    rendezvous.join("t-1", 1, 1)
    with pytest.raises(KeyMissing):
        rendezvous.get(2, "key")


def test_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(limits, "KEYS", limits.KEYS._replace(total=2))
    rendezvous = formed()
    rendezvous.put(1, "a", b"")
    rendezvous.put(1, "b", b"")

    with pytest.raises(LimitExceeded, match="publish fewer"):
        rendezvous.put(1, "c", b"")

    rendezvous.put(1, "b", b"")


def test_published_bytes_are_bounded_for_one_trainer_and_for_all_until_the_generation_ends(
    monkeypatch,
):
    small = limits.KEY_BYTES._replace(total=30, per_caller=20)
    monkeypatch.setattr(limits, "KEY_BYTES", small)
    rendezvous = formed()
    rendezvous.put(1, "a", bytes(15), "t-0")

    with pytest.raises(LimitExceeded, match="16 are kept for 't-0' and the limit is 20"):
        rendezvous.put(1, "b", bytes(4), "t-0")
    rendezvous.put(1, "b", bytes(8), "t-1")
    with pytest.raises(LimitExceeded, match="25 are kept in all and the limit is 30"):
        rendezvous.put(1, "c", bytes(8), "t-2")
    rendezvous.drop("t-0")
    rendezvous.join("t-0", 1, 1)
    rendezvous.join("t-1", 1, 1)

    rendezvous.put(2, "c", bytes(15), "t-0")


def test_joining_a_cluster_without_trainers_names_the_setting():
    with pytest.raises(InvalidRequest, match=r"coordinator\.trainers"):
        Rendezvous(0).join("t-0", 1, 0)


def test_memory_of_a_formed_generation_keeps_every_place():
    rendezvous = Rendezvous(2, formed().dump())

    assert rendezvous.rank_of("t-1", 1) == (1, 1)
    assert not rendezvous.join("t-0", 1, 0)


def test_memory_of_an_ended_generation_does_not_bring_it_back():
    ended = formed()
    ended.drop("t-0")

    rendezvous = Rendezvous(2, ended.dump())

    assert (rendezvous.current, rendezvous.formed) == (2, False)


def test_memory_for_another_number_of_trainers_ends_the_generation():
    rendezvous = Rendezvous(3, formed(2).dump())

    assert (rendezvous.current, rendezvous.formed) == (2, False)
