"""Barriers and all-gathers of the four workers."""

import uuid

import pytest
from rpc_async_functions import count_then_meet, meet, meet_in_threads

import gradmesh as gm
from gradmesh.protos import errors

WORKERS = [f"worker-{rank}" for rank in range(4)]


def test_all_gather() -> None:
    for round in range(3):
        futures = [gm.rpc_async(name, meet, (f"{name}/{round}", WORKERS)) for name in WORKERS]

        assert [future.wait() for future in futures] == [
            {name: f"{name}/{round}" for name in WORKERS}
        ] * 4


def test_all_gather_timeout() -> None:
    some = [*WORKERS[:2], "driver"]

    futures = [gm.rpc_async(name, meet, (1, some, 0.1)) for name in WORKERS[:2]]

    for future in futures:
        with pytest.raises(
            errors.DeadlineExceeded,
            match=r"driver did not arrive within 0\.10 s; the participants are",
        ):
            future.wait()


def test_who_does_not_belong_cannot_meet() -> None:
    with pytest.raises(errors.InvalidRequest, match="'driver' is not among the participants"):
        gm.rpc.barrier(WORKERS)


@pytest.mark.parametrize("workers", [WORKERS, WORKERS[1:3], WORKERS[2:3]], ids=len)
def test_rpc_barrier(workers: list[str]) -> None:
    name = uuid.uuid4().hex

    futures = [gm.rpc_async(one, count_then_meet, ("worker-0", name, workers)) for one in workers]

    assert [future.wait() for future in futures] == [len(workers)] * len(workers)


def test_rpc_barrier_multithreaded() -> None:
    futures = [gm.rpc_async(name, meet_in_threads, (WORKERS, 3)) for name in WORKERS]

    assert [future.wait() for future in futures] == [3] * 4
