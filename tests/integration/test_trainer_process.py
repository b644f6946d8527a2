"""The trainer as a process, from the command line, in a mesh of foreground processes."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.network import SecurityConfig

GRADMESH = (sys.executable, "-m", "gradmesh")
SMALL = ("--batch-size", "16", "--data-rows", "50,20", "--eval-batches", "4", "--log-every", "1")


def wait_for(what: str, condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.02)


class Mesh:
    """A coordinator, a parameter server, and the trainers that the test starts."""

    def __init__(self, undo: contextlib.ExitStack, folder: Path, trainers: int) -> None:
        self._undo = undo
        # A file, because a full pipe would block the process.
        self._log = folder / "log"
        file = folder / "address"
        self.start(
            *("coordinator", "--listen", "127.0.0.1:0", "--address-file", str(file)),
            *("--parameter-servers", "1", "--trainers", str(trainers)),
        )
        wait_for("the address", file.exists)
        self.address = file.read_text().strip()
        self.start("parameter-server", "--coordinator", self.address)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            process = subprocess.Popen([*GRADMESH, *arguments], stderr=log, text=True)
        self._undo.callback(process.wait, timeout=120)
        self._undo.callback(process.kill)
        return process

    def log(self) -> str:
        return self._log.read_text()

    def train(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start("trainer", "--coordinator", self.address, *SMALL, *arguments)

    def status(self) -> ClusterStatus:
        return fetch(self.address, SecurityConfig(), 5.0)


@pytest.fixture
def start_mesh(tmp_path: Path) -> Iterator[Callable[[int], Mesh]]:
    with contextlib.ExitStack() as undo:
        yield lambda trainers: Mesh(undo, tmp_path, trainers)


def trainers_of(mesh: Mesh) -> list[str]:
    return [member.name for member in mesh.status().members if member.role == "trainer"]


def test_finished_job_exits_0_and_leaves_its_result(start_mesh: Callable[[int], Mesh]) -> None:
    mesh = start_mesh(1)

    trainer = mesh.train("--steps", "5")

    assert trainer.wait(120) == 0
    result = mesh.status().result
    assert result["steps"] == 5
    assert result["samples"] == 5 * 16
    assert 0 < result["auc"] < 1
    assert result["bytes_moved"] > 0
    assert trainers_of(mesh) == []


def test_sigterm_ends_training_with_143_and_leaves_the_mesh(
    start_mesh: Callable[[int], Mesh],
) -> None:
    mesh = start_mesh(1)
    trainer = mesh.train("--steps", "1000000")
    wait_for("training", lambda: mesh.status().step > 2)

    trainer.send_signal(signal.SIGTERM)

    assert trainer.wait(120) == 143
    assert trainers_of(mesh) == []
    assert mesh.status().result == {}


def test_sigterm_ends_the_wait_for_peers(start_mesh: Callable[[int], Mesh]) -> None:
    mesh = start_mesh(2)
    trainer = mesh.train()
    wait_for("the trainer", lambda: trainers_of(mesh) == ["trainer-0"])

    trainer.send_signal(signal.SIGTERM)

    assert trainer.wait(120) == 143


def test_missing_trainers_end_the_process_with_3(start_mesh: Callable[[int], Mesh]) -> None:
    mesh = start_mesh(2)

    trainer = mesh.train("--join-timeout-s", "3")

    assert trainer.wait(120) == 3
    assert "raise trainer.join_timeout_s" in mesh.log()


def test_job_with_other_tables_on_the_same_mesh_is_refused(
    start_mesh: Callable[[int], Mesh],
) -> None:
    mesh = start_mesh(1)
    assert mesh.train("--steps", "2").wait(120) == 0

    trainer = mesh.train("--steps", "2", "--model-dim", "4")

    assert trainer.wait(120) == 2
    assert "'feature-0'" in mesh.log()


def test_a_trainer_that_joins_a_finished_job_ends(
    start_mesh: Callable[[int], Mesh],
) -> None:
    mesh = start_mesh(2)
    named = ("--steps", "3", "--id", "one")
    first = [mesh.train("--name", f"trainer-{i}", *named) for i in range(2)]
    assert [process.wait(120) for process in first] == [0, 0]
    steps = mesh.status().result["steps"]

    late = mesh.train("--name", "trainer-1", *named)

    # Alone it would wait for the other, and then give up.
    assert late.wait(120) == 0
    assert "nothing left to do" in mesh.log()
    assert mesh.status().result["steps"] == steps
