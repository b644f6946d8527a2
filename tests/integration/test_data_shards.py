"""Workers that read a data set together, some of whom die."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.sdk.mesh.data_shards import DataShards


def shards(mesh, **options):
    options = {"samples": 95, "shard_samples": 10, "epochs": 2} | options
    return DataShards(mesh, "clicks", **options)


def test_two_workers_read_every_sample_once_an_epoch(make_cluster):
    cluster = make_cluster(parameter_servers=1)

    def read(name):
        with cluster.connect(name) as mesh:
            return [(s.epoch, i) for s in shards(mesh) for i in range(s.begin, s.end)]

    with ThreadPoolExecutor(2) as pool:
        found = sorted(pair for pairs in pool.map(read, ["a", "b"]) for pair in pairs)

    assert found == [(epoch, sample) for epoch in range(2) for sample in range(95)]


def test_shards_of_a_lost_worker_are_read_by_another(make_cluster):
    cluster = make_cluster(parameter_servers=1, lease_s=3.0)
    lost, other = cluster.connect("lost"), cluster.connect("other")
    begun = next(shards(lost, epochs=1))

    lost.connection._lease._closed.set()  # stops renewing its lease, as if killed
    found = [shard.number for shard in shards(other, epochs=1)]

    assert begun.number == 0
    assert sorted(found) == list(range(10))


def test_a_restarted_coordinator_restores_shard_assignments(make_cluster, tmp_path, eventually):
    cluster = make_cluster(parameter_servers=1, state_dir=tmp_path)
    mesh, other = cluster.connect("a"), cluster.connect("b")
    mine, theirs = shards(mesh, epochs=1), shards(other, epochs=1)
    first, second = next(mine), next(theirs)

    cluster.stop_coordinator()
    cluster.start_coordinator()
    eventually(lambda: cluster.coordinator.machine.members.has("a"))
    eventually(lambda: cluster.coordinator.machine.members.has("b"))
    rest = [next(hand).number for _ in range(4) for hand in (mine, theirs)]

    assert (first.number, second.number) == (0, 1)
    assert sorted(rest) == list(range(2, 10))


def test_reading_resumes_at_a_position(make_cluster):
    mesh = make_cluster(parameter_servers=1).connect("a")
    mine = shards(mesh, epochs=1)
    for _ in range(4):
        next(mine)

    position = mine.position
    read = [shard.number for shard in mine]
    mine.seek(position)
    again = [shard.number for shard in mine]

    assert read == [4, 5, 6, 7, 8, 9]
    assert again == [3, 4, 5, 6, 7, 8, 9]  # the current shard was not finished
    with pytest.raises(InvalidRequest, match="not a position"):
        mine.seek(b"nonsense")


def test_waiting_for_other_readers_ends_by_the_deadline(make_cluster):
    cluster = make_cluster(parameter_servers=1)
    greedy, other = cluster.connect("greedy"), cluster.connect("other")
    next(shards(greedy, samples=5, epochs=1))

    with pytest.raises(DeadlineExceeded, match="other workers still read the last 1 shards"):
        next(shards(other, samples=5, epochs=1, timeout_s=2.0))
