import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradmesh.protos.errors import InvalidRequest, ShardNotReady, TableNotFound
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.coordinator_view import CoordinatorView


def soon(timeout_s=20.0):
    return Deadline.after(timeout_s)


def test_a_server_that_has_not_joined_answers_shard_not_ready():
    with pytest.raises(ShardNotReady, match="not joined"):
        CoordinatorView().shard_map(1, soon())


def test_the_directory_serves_tables_and_map_of_the_coordinator(cluster):
    directory = CoordinatorView()
    directory.join(cluster.connect().connection)

    assert directory.shard_map(None, soon()).names == ["ps-0", "ps-1"]
    with pytest.raises(TableNotFound):
        directory.describe("nobody", soon())


@pytest.mark.parametrize("epoch", [0, 1, 2, 99])
def test_a_map_that_a_caller_saw_is_fetched(cluster, epoch):
    directory = CoordinatorView()
    directory.join(cluster.connect().connection)
    directory.shard_map(None, soon())

    cluster.restart_server(0)

    assert directory.shard_map(epoch, soon()).epoch == (1 if epoch == 1 else 2)


def test_an_unresponsive_coordinator_does_not_delay_cached_maps(cluster):
    directory = CoordinatorView()
    directory.join(cluster.connect().connection)
    held = directory.shard_map(None, soon())
    cluster.stop_coordinator()

    with ThreadPoolExecutor(2) as pool:
        stuck = [pool.submit(directory.shard_map, 99, soon(30.0)) for _ in range(2)]
        begun = time.monotonic()
        same = directory.shard_map(held.epoch, soon(30.0))
        took_s = time.monotonic() - begun
        for job in stuck:
            with pytest.raises(ShardNotReady, match="waits for the coordinator"):
                job.result(timeout=120)
    with pytest.raises(ShardNotReady, match="waits for the coordinator"):
        directory.describe("user", soon(1.0))
    cluster.start_coordinator()

    assert same is held
    assert took_s < 10  # it may wait for 30 s


def test_a_generation_that_the_trainers_never_had_is_refused(cluster):
    directory = CoordinatorView()
    mesh = cluster.connect()
    directory.join(mesh.connection)

    directory.check_generation(mesh.connection.generation, soon())
    with pytest.raises(InvalidRequest, match="the trainers' newest is"):
        directory.check_generation(mesh.connection.generation + 2**40, soon())
