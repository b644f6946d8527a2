"""Contexts of killed processes: every owner releases them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradmesh.cli import main
from gradmesh.launch.local import LocalCluster
from tests.faults.scenario import wait_for

pytestmark = pytest.mark.timeout(600)

# Opens contexts with rows of every server, a thread each, says so, and waits to be killed.
_VISITOR = """
import sys, threading, time
import numpy as np
import gradmesh as gm

address, count, replace = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "replace"
mesh = gm.connect(address, name="visitor", replace=replace)
layer = gm.nn.RemoteEmbedding(mesh.table("user", rows=100, dim=2, optimizer=gm.optim.SGD(lr=0.1)))
met = threading.Barrier(count + 1)

def hold():
    with gm.autograd.context(mesh):
        layer(np.arange(100))
        met.wait()
        time.sleep(600)

for _ in range(count):
    threading.Thread(target=hold, daemon=True).start()
met.wait()
print("open", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"coordinator.lease_s": 2.0}
    with LocalCluster(parameter_servers=2, settings=settings) as cluster:
        yield cluster


@contextmanager
def visitor(cluster: LocalCluster, count: int, how: str = "new") -> Iterator[Any]:
    started = subprocess.Popen(
        [sys.executable, "-c", _VISITOR, cluster.address, str(count), how],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "open\n"
        yield started
    finally:
        started.kill()
        started.communicate(timeout=120)


@pytest.fixture
def contexts(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Any:
    def listed() -> list[tuple[bool, dict[str, int]]]:
        capsys.readouterr()  # output of other tests
        code = main(["contexts", "--json", "--coordinator", cluster.address])
        shown = capsys.readouterr().out
        assert code == 0
        return [(one["alive"], one["open"]) for one in json.loads(shown)]

    return listed


def test_contexts_of_a_killed_worker_are_listed_and_released(
    cluster: LocalCluster, contexts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with visitor(cluster, 3):
        everywhere = {"parameter-server-0": 3, "parameter-server-1": 3}
        wait_for("a heartbeat", lambda: contexts() == [(True, everywhere)])
        main(["contexts", "--coordinator", cluster.address])
        shown = capsys.readouterr().out

    wait_for("the release", lambda: contexts() == [])
    assert "visitor" in shown
    assert "parameter-server-1 3" in shown
    main(["contexts", "--coordinator", cluster.address])
    assert capsys.readouterr().out == "no contexts are open\n"


def test_contexts_of_a_former_incarnation_are_released(
    cluster: LocalCluster, contexts: Any
) -> None:
    with visitor(cluster, 3) as first:
        wait_for("a heartbeat", lambda: len(contexts()) == 1)
        first.send_signal(signal.SIGKILL)
        with visitor(cluster, 1, "replace"):
            left = {"parameter-server-0": 1, "parameter-server-1": 1}
            wait_for("the release", lambda: contexts() == [(True, left)])

    wait_for("the release", lambda: contexts() == [])


def test_contexts_of_a_worker_that_dies_while_the_coordinator_is_down_are_released(
    cluster: LocalCluster, contexts: Any
) -> None:
    (coordinator,) = [p for p in cluster.processes() if p["role"] == "coordinator"]
    with visitor(cluster, 2) as process:
        wait_for("a heartbeat", lambda: len(contexts()) == 1)
        os.kill(coordinator["pid"], signal.SIGKILL)
        process.kill()
        process.wait(120)

    def is_back() -> bool:
        (now,) = [p for p in cluster.processes() if p["role"] == "coordinator"]
        return now["pid"] not in (None, coordinator["pid"]) and cluster.address != ""

    wait_for("the coordinator", is_back)
    wait_for("its answer", lambda: main(["status", "--coordinator", cluster.address]) == 0)
    wait_for("the release", lambda: contexts() == [])
