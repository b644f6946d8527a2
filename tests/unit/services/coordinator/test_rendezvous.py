import pytest

from gradmesh.protos.errors import (
    InvalidRequest,
    KeyConflict,
    KeyMissing,
    RoundOpen,
    StaleGeneration,
    StoreFull,
)
from gradmesh.services.coordinator import rendezvous as module
from gradmesh.services.coordinator.rendezvous import Rounds


def formed(world_size=2, memory=b""):
    rounds = Rounds(world_size, memory)
    for i in range(world_size):
        rounds.join(f"t-{i}", 1, 0)
    return rounds


def test_ranks_follow_names_not_arrival():
    rounds = Rounds(3)

    joined = [rounds.join(name, 1, 0) for name in ("t-10", "t-9", "t-1")]

    assert joined == [False, False, True]
    assert [rounds.place(name, 1) for name in ("t-1", "t-9", "t-10")] == [(1, 0), (1, 1), (1, 2)]


def test_an_open_round_lists_the_joined_trainers():
    rounds = Rounds(2)
    rounds.join("t-0", 1, 0)

    with pytest.raises(RoundOpen, match="1 of 2 trainers have joined generation 1: t-0"):
        rounds.place("t-0", 1)


def test_joining_again_keeps_the_rank():
    rounds = formed()

    assert not rounds.join("t-1", 1, 0)
    assert rounds.place("t-1", 1) == (1, 1)


@pytest.mark.parametrize(("incarnation", "after"), [(1, 1), (2, 0)])
def test_a_trainer_that_rejoins_ends_the_generation(incarnation, after):
    rounds = formed()
    rounds.put(1, "key", b"value")

    rounds.join("t-0", incarnation, after)

    assert (rounds.current, rounds.formed) == (2, False)
    with pytest.raises(StaleGeneration, match="generation 1 is over, 2 is forming; join again"):
        rounds.get(1, "key")


def test_a_surplus_trainer_waits_for_a_vacant_rank():
    rounds = formed()

    rounds.join("t-2", 1, 0)
    with pytest.raises(RoundOpen):
        rounds.place("t-2", 1)
    stood = rounds.formed
    rounds.drop("t-0")
    rounds.join("t-2", 1, 0)
    rounds.join("t-1", 1, 1)

    assert stood
    assert rounds.place("t-1", 1) == (2, 0)
    assert rounds.place("t-2", 1) == (2, 1)


def test_a_lost_trainer_ends_a_formed_generation_only():
    rounds = Rounds(2)
    rounds.join("t-0", 1, 0)

    assert not rounds.drop("t-0")
    assert not rounds.drop("stranger")
    assert rounds.current == 1
    assert dict(rounds.joined) == {}
    assert formed().drop("t-1")


def test_keys_belong_to_one_generation():
    rounds = formed()
    rounds.put(1, "key", b"value")
    rounds.put(1, "key", b"value")

    with pytest.raises(KeyConflict):
        rounds.put(1, "key", b"other")
    with pytest.raises(KeyMissing):
        rounds.get(1, "nothing")
    with pytest.raises(StaleGeneration):
        rounds.put(2, "key", b"value")
    assert rounds.get(1, "key") == b"value"

    rounds.drop("t-0")
    rounds.join("t-0", 1, 1)
    rounds.join("t-1", 1, 1)
    with pytest.raises(KeyMissing):
        rounds.get(2, "key")


def test_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_KEYS", 2)
    rounds = formed()
    rounds.put(1, "a", b"")
    rounds.put(1, "b", b"")

    with pytest.raises(StoreFull, match="publish fewer"):
        rounds.put(1, "c", b"")

    rounds.put(1, "b", b"")


def test_joining_a_cluster_without_trainers_names_the_setting():
    with pytest.raises(InvalidRequest, match=r"coordinator\.trainers"):
        Rounds(0).join("t-0", 1, 0)


def test_memory_of_a_formed_generation_keeps_every_place():
    rounds = Rounds(2, formed().remember())

    assert rounds.place("t-1", 1) == (1, 1)
    assert not rounds.join("t-0", 1, 0)


def test_memory_of_an_ended_generation_does_not_bring_it_back():
    ended = formed()
    ended.drop("t-0")

    rounds = Rounds(2, ended.remember())

    assert (rounds.current, rounds.formed) == (2, False)


def test_memory_for_another_number_of_trainers_ends_the_generation():
    rounds = Rounds(3, formed(2).remember())

    assert (rounds.current, rounds.formed) == (2, False)
