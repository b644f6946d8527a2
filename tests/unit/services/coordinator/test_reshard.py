"""The phases of a reshard, and its failures."""

import pytest

from gradmesh.protos.coordinator.v1 import reshard_pb2, table_pb2
from gradmesh.protos.errors import InvalidRequest, ReshardUnderWay
from gradmesh.protos.sharding import even_buckets
from gradmesh.services.coordinator import reshard as phases
from gradmesh.services.coordinator.reshard import Reshards


def map_of(*names):
    shards = [table_pb2.Shard(name=name, address="h:1", incarnation=1) for name in names]
    return table_pb2.ShardMap(epoch=3, shards=shards, bucket_shards=even_buckets(len(names)))


@pytest.fixture
def reshards():
    return Reshards()


@pytest.fixture
def begin(reshards, say):
    """Begin a reshard between servers that have all joined."""

    def begin(current, count, spare=()):
        names = [*(shard.name for shard in current.shards), *spare]
        reshards.scale(count, 5.0, current, 0.0)
        reshards.plan([say.member(name) for name in names], current, 0.0)
        return reshards

    return begin


def report(name, reshards, **said):
    said.setdefault("done", reshards.state.phase)
    return reshard_pb2.ReportMoveRequest(
        name=name, incarnation=1, reshard=reshards.state.number, **said
    )


def report_all(reshards, current, names, **said):
    for name in names:
        reshards.report(report(name, reshards, **said), current, 1.0)


@pytest.mark.parametrize(("count", "wait_s"), [(0, 1.0), (4097, 1.0), (2, -1.0), (2, float("nan"))])
def test_counts_that_make_no_sense_are_refused(reshards, count, wait_s):
    with pytest.raises(InvalidRequest):
        reshards.scale(count, wait_s, map_of("ps-0"), 0.0)

    assert not reshards.under_way


def test_scaling_to_the_same_number_ends_at_once(reshards):
    assert reshards.scale(1, 0.0, map_of("ps-0"), 0.0).phase == phases.DONE


def test_one_at_a_time(begin, reshards):
    current = map_of("ps-0")
    begin(current, 2, ["ps-1"])

    assert reshards.scale(2, 0.0, current, 0.0).number == 1
    with pytest.raises(ReshardUnderWay, match="scaled to 2 already, not to 3"):
        reshards.scale(3, 0.0, current, 0.0)


def test_scaling_up_passes_all_phases(begin):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 3, ["ps-2"])
    seen = [reshards.state.phase]
    for names in (["ps-0", "ps-1", "ps-2"], *[["ps-0", "ps-1"]] * 3):
        report_all(reshards, current, names, begun_steps=7, origin=1)
        seen.append(reshards.state.phase)

    made = reshards.state.map
    report_all(reshards, made, ["ps-0", "ps-1", "ps-2"])

    assert seen == list(range(phases.COPYING, phases.ADOPTING + 1))
    assert made.epoch == 4
    assert reshards.state.step == 7
    assert reshards.state.phase == phases.DONE
    # The fewest possible: a third of all.
    assert reshards.state.buckets == 1365
    assert reshards.status().buckets_moved == 1365


def test_down_keeps_the_first_servers_and_moves_only_what_the_others_held(begin):
    current = map_of("ps-10", "ps-2", "ps-1")

    reshards = begin(current, 2)

    made = reshards.state.map
    assert [shard.name for shard in made.shards] == ["ps-2", "ps-1"]
    assert reshards.state.buckets == list(current.bucket_shards).count(0)


def test_a_reshard_waits_for_servers_until_its_deadline(reshards, say):
    current = map_of("ps-0")
    reshards.scale(3, 5.0, current, 0.0)
    here = [say.member("ps-0"), say.member("ps-1")]

    assert not reshards.plan(here, current, 1.0)
    assert not reshards.expire(4.0, current)
    assert reshards.expire(5.1, current)

    assert reshards.state.phase == phases.ABORTED
    assert "fewer than 3" in reshards.state.error


def test_steps_are_not_held_up_for_long(begin):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 3, ["ps-2"])
    report_all(reshards, current, ["ps-0", "ps-1", "ps-2"])
    report_all(reshards, current, ["ps-0", "ps-1"])
    reshards.report(report("ps-0", reshards), current, 2.0)

    assert not reshards.expire(20.9, current)
    assert reshards.expire(21.1, current)

    assert reshards.state.error == "ps-1 did not finish within 20 s; scale again"


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_losing_a_server_before_the_commit_ends_the_reshard(begin, rounds):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 1)
    for _ in range(rounds):
        report_all(reshards, current, ["ps-0", "ps-1"])

    assert reshards.drop("ps-1", current)

    assert reshards.state.phase == phases.ABORTED
    assert reshards.state.error == "ps-1 is gone; scale again"


def test_restarting_a_server_after_the_commit_does_not_end_the_reshard(begin, say):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 1)
    for _ in range(4):
        report_all(reshards, current, ["ps-0", "ps-1"])

    assert not reshards.check_member(say.member("ps-0", incarnation=2), current)
    assert not reshards.drop("ps-1", current)

    assert reshards.state.phase == phases.ADOPTING


def test_a_server_that_cannot_continue_ends_the_reshard_with_its_reason(begin):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 1)

    reshards.report(report("ps-0", reshards, error="no room"), current, 1.0)

    assert reshards.state.error == "ps-0: no room"


def test_a_step_needs_a_common_run(begin):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 1)
    report_all(reshards, current, ["ps-0", "ps-1"])
    reshards.report(report("ps-0", reshards, origin=1, begun_steps=5), current, 1.0)
    reshards.report(report("ps-1", reshards), current, 1.0)

    assert reshards.state.phase == phases.DRAINING
    assert not reshards.state.HasField("step")


def test_reports_of_another_reshard_do_not_count(begin):
    current = map_of("ps-0")
    reshards = begin(current, 2, ["ps-1"])
    old = report("ps-0", reshards)
    old.reshard = 0

    assert not reshards.report(old, current, 1.0)
    assert reshards.state.phase == phases.COPYING


def test_a_restarted_coordinator_resumes(begin):
    current = map_of("ps-0", "ps-1")
    reshards = begin(current, 1)
    report_all(reshards, current, ["ps-0", "ps-1"])

    again = Reshards(reshards.dump())

    assert again.state == reshards.state
    report_all(again, current, ["ps-0", "ps-1"])
    assert again.state.phase == phases.DRAINING
