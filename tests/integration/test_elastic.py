"""Trainers that join and leave while a job runs: no batch is skipped."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradmesh.trainer.data import ClickData, DataConfig
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.job import Job
from gradmesh.trainer.job.run import TrainingRun
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models import ModelConfig
from gradmesh.trainer.process_group import Endpoint

CONFIG = JobConfig(
    steps=60, batch_size=16, eval_batches=2, log_every=1000, collective_timeout_s=20.0
)
JOB_SPEC = JobSpec(
    job=CONFIG,
    data=DataConfig(rows=(40, 20), dense_features=4),
    model=ModelConfig(dim=4, bottom=(8,), top=(8,)),
)


class Seen:
    """The steps and batches of all trainers of a job."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batches: set[int] = set()
        self.steps: dict[int, set[int]] = {}
        self.reached = {step: threading.Event() for step in range(CONFIG.steps)}
        self.hold = {}


@pytest.fixture
def seen(monkeypatch):
    found = Seen()
    draw, take = ClickData.batch, TrainingRun.take_step

    def batch(self, split, index, size):
        if split == "train":
            with found.lock:
                found.batches.add(index)
        return draw(self, split, index, size)

    def take_step(self, step):
        if step in found.hold:
            assert found.hold[step].wait(120)
        loss = take(self, step)
        with found.lock:
            found.steps.setdefault(step, set()).add(self._membership.world_size)
        found.reached[step].set()
        return loss

    monkeypatch.setattr(ClickData, "batch", batch)
    monkeypatch.setattr(TrainingRun, "take_step", take_step)
    return found


def start(pool, cluster, name, stop=None):
    mesh = cluster.connect(name, role="trainer", timeout_s=20.0)
    stop = stop or threading.Event()
    job = Job(mesh, JOB_SPEC, endpoint=Endpoint(), join_timeout_s=30.0, is_stopping=stop.is_set)

    def run():
        try:
            return job.run()
        finally:
            mesh.close()

    return pool.submit(run)


@pytest.mark.timeout(600)
def test_trainers_come_and_go_and_every_batch_is_trained_once(make_cluster, seen):
    cluster = make_cluster(parameter_servers=2, trainers=2, min_trainers=1)
    leaves = threading.Event()
    # The remaining trainer waits at step 40 until another one has joined.
    seen.hold[40] = threading.Event()

    with ThreadPoolExecutor(3) as pool:
        stays = start(pool, cluster, "trainer-0")
        goes = start(pool, cluster, "trainer-1", leaves)
        assert seen.reached[10].wait(120)
        leaves.set()
        assert goes.result(timeout=120) is None
        assert seen.reached[39].wait(120)
        generation = cluster.coordinator.machine.rendezvous.current
        comes = start(pool, cluster, "trainer-2")
        while cluster.coordinator.machine.rendezvous.current == generation:
            threading.Event().wait(0.01)
        for store in cluster.stores:  # as their next heartbeat does
            store.fence(generation + 1)
        seen.hold[40].set()
        figures = stays.result(timeout=120)
        comes.result(timeout=120)

    trained = figures["samples"] / CONFIG.batch_size
    sizes = [next(iter(sizes)) for _, sizes in sorted(seen.steps.items())]
    assert sizes[:5] == [2] * 5
    assert 1 in sizes
    assert sizes[-5:] == [2] * 5
    assert trained == sum(sizes)
    assert seen.batches == set(range(int(trained)))
