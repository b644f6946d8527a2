import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.protos import limits
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, ShardNotReady
from gradmesh.services.coordinator.data_set import (
    MAX_POSITION_BYTES,
    DataSetSpec,
    Range,
    read_position,
)
from gradmesh.services.coordinator.data_sets import DataSets

CUT = DataSetSpec(samples=10, shard_samples=4, epochs=2)
A, B = ("a", 1), ("b", 1)


def test_shards_cover_the_set_and_the_last_may_be_short():
    sets = DataSets()

    found = [sets.take("t", CUT, A, 1, []), sets.take("t", CUT, B, 1, [])]
    found.append(sets.take("t", CUT, A, 2, [0]))

    assert found == [Range(0, 0, 0, 4), Range(0, 1, 4, 8), Range(0, 2, 8, 10)]


def test_the_next_epoch_begins_when_all_are_done_and_the_last_one_ends():
    sets = DataSets()
    for shard in range(3):
        sets.take("t", CUT, A, shard + 1, [shard - 1] if shard else [])

    second = sets.take("t", CUT, A, 4, [2])
    for shard in range(2):
        sets.take("t", CUT, A, 5 + shard, [shard])

    assert second == Range(1, 0, 0, 4)
    assert sets.take("t", CUT, A, 7, [2]) is None


def test_while_others_read_the_last_shards_the_caller_waits():
    sets = DataSets()
    for shard in range(3):
        sets.take("t", CUT, B, shard + 1, [])

    with pytest.raises(
        ShardNotReady, match="other workers still read the last 3 shards of epoch 0"
    ):
        sets.take("t", CUT, A, 1, [])
    sets.drop("b")

    assert sets.take("t", CUT, A, 1, []) == Range(0, 0, 0, 4)


def test_repeated_requests_return_the_same_shard_once():
    sets = DataSets()
    first = sets.take("t", CUT, A, 1, [])

    assert sets.take("t", CUT, A, 1, []) == first
    assert sets.take("t", CUT, A, 2, [0]) == sets.take("t", CUT, A, 2, [0])
    # It was never assigned to this worker.
    sets.take("t", CUT, B, 1, [1])
    sets.check_invariants()


def test_a_data_set_has_one_division_into_shards():
    sets = DataSets()
    sets.take("t", CUT, A, 1, [])

    with pytest.raises(InvalidRequest, match="use the same values everywhere"):
        sets.take("t", DataSetSpec(11, 4, 2), B, 1, [])
    for bad in (DataSetSpec(0, 4, 1), DataSetSpec(4, 0, 1), DataSetSpec(1 << 30, 1, 1)):
        with pytest.raises(InvalidRequest):
            sets.take("u", bad, B, 1, [])


@pytest.mark.parametrize("position", [b"", b"nonsense", b"\x81\xa3cut\x93\x00\x00\x00"])
def test_an_invalid_position_is_refused(position):
    with pytest.raises(InvalidRequest, match="not a position"):
        read_position("t", position)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "die", "restart", "seek"]), st.integers(0, 2)),
        max_size=60,
    )
)
def test_every_shard_is_finished_once_an_epoch_despite_lost_workers(events):
    sets, cut = DataSets(), DataSetSpec(samples=7, shard_samples=1, epochs=2)
    hands: dict[int, Range] = {}
    incarnation, sequence = [1, 1, 1], [0, 0, 0]
    finished: list[tuple[int, int]] = []
    saved, saved_finished = None, []
    for kind, worker in events:
        name = f"w{worker}"
        if kind == "take":
            sequence[worker] += 1
            mine = hands.pop(worker, None)
            try:
                found = sets.take(
                    "t",
                    cut,
                    (name, incarnation[worker]),
                    sequence[worker],
                    [] if mine is None else [mine.shard],
                )
            except ShardNotReady:
                found = None
            if mine is not None:
                finished.append((mine.epoch, mine.shard))
            if found is not None:
                hands[worker] = found
        elif kind == "die":
            sets.drop(name)
            hands.pop(worker, None)
            incarnation[worker] += 1
        elif kind == "restart" and sets.dump("t"):
            known = sets.dump("t")
            sets = DataSets()
            sets.restore("t", read_position("t", known, with_assignments=True))
        elif kind == "seek":
            if saved is None and sets.position("t"):
                saved, saved_finished = sets.position("t"), list(finished)
            elif saved is not None:
                sets.restore("t", read_position("t", saved))
                finished, saved = saved_finished, None
                hands.clear()
        sets.check_invariants()
        assert len(set(finished)) == len(finished)
    # The remaining worker reads the rest.
    while True:
        sequence[0] += 1
        mine = hands.pop(0, None)
        for gone in ("w1", "w2"):
            sets.drop(gone)
        worker = ("w0", incarnation[0])
        found = sets.take("t", cut, worker, sequence[0], [] if mine is None else [mine.shard])
        if mine is not None:
            finished.append((mine.epoch, mine.shard))
        if found is None:
            break
        hands[0] = found
    assert sorted(finished) == [(epoch, shard) for epoch in range(2) for shard in range(7)]


def test_a_position_of_a_client_assigns_nothing():
    sets = DataSets()
    sets.take("t", CUT, A, 1, [])
    whole = sets.dump("t")

    stored = read_position("t", whole)

    assert (stored.held, stored.answers) == ({}, {})
    with pytest.raises(InvalidRequest, match="not a position"):
        read_position("t", whole + bytes(MAX_POSITION_BYTES))


def test_a_worker_takes_no_more_shards_than_it_may_leave_unfinished(monkeypatch):
    monkeypatch.setattr(limits, "MAX_SHARDS_HELD", 2)
    sets = DataSets()
    for sequence in (1, 2):
        sets.take("t", CUT, A, sequence, [])

    with pytest.raises(LimitExceeded, match="has taken 2 shards that it has not finished"):
        sets.take("t", CUT, A, 3, [])

    assert sets.take("t", CUT, B, 1, []).shard == 2
    sets.drop("a")
    assert sets.take("t", CUT, B, 2, [2]).shard == 0


def test_data_sets_and_their_shards_are_bounded_for_one_caller_and_for_all(monkeypatch):
    monkeypatch.setattr(limits, "DATA_SETS", limits.DATA_SETS._replace(total=3, per_caller=2))
    monkeypatch.setattr(limits, "DATA_SHARDS", limits.DATA_SHARDS._replace(total=8))
    sets = DataSets()
    for name in "uv":
        sets.take(name, CUT, A, 1, [], "a")

    with pytest.raises(LimitExceeded, match="data sets: 2 are kept for 'a' and the limit is 2"):
        sets.take("w", CUT, A, 1, [], "a")
    with pytest.raises(LimitExceeded, match="shards of all data sets: 6 are kept in all"):
        sets.take("w", CUT, B, 1, [], "b")
    with pytest.raises(LimitExceeded):
        sets.restore("w", read_position("w", sets.position("u")), "b")

    assert sets.take("w", DataSetSpec(2, 1, 1), B, 1, [], "b").shard == 0
    assert sets.take("u", CUT, A, 2, [0], "a").shard == 1
    sets.check_invariants()


def test_a_position_of_a_large_set_continues_behind_the_finished_shards():
    spec = DataSetSpec(samples=100, shard_samples=1, epochs=1)
    sets = DataSets()
    for sequence in range(1, 82):
        sets.take("t", spec, A, sequence, [sequence - 2] if sequence > 1 else [])
    sets.restore("t", read_position("t", sets.position("t")))
    sets.check_invariants()

    assert [sets.take("t", spec, A, n, []).shard for n in (200, 201)] == [80, 81]
    sets.drop("a")
    assert sets.take("t", spec, B, 1, []).shard == 80
    sets.check_invariants()
