"""A parameter server as a process: SIGTERM ends it although calls wait in it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import MeshError
from gradmesh.sdk import autograd
from gradmesh.sdk.mesh.connect import connect, join_mesh
from gradmesh.sdk.nn import RemoteEmbedding

GRADMESH = (sys.executable, "-m", "gradmesh")
# Far longer than the test waits: a process that does not end by itself is not cut off in time.
DRAIN = ("--drain-s", "600")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*GRADMESH, *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(600)
def test_processes_end_though_calls_wait_in_them(tmp_path: Path, eventually) -> None:
    file = tmp_path / "address"
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            started("coordinator", "--listen", "127.0.0.1:0", "--address-file", str(file), *DRAIN)
        )
        eventually(file.exists, 50)
        address = file.read_text().strip()
        server = stack.enter_context(started("parameter-server", "--coordinator", address, *DRAIN))
        mesh = stack.enter_context(
            join_mesh(address, name="trainer-0", role="trainer", address="127.0.0.1:1")
        )
        pool = stack.enter_context(ThreadPoolExecutor(2))
        table = mesh.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
        place = mesh.connection.join_trainers(20)
        mesh.connection.start_run(place, [table.name])

        def wait_for_a_step() -> None:
            with autograd.step_context(mesh, place.mark(1)):
                RemoteEmbedding(table)([1])

        waiting = [
            pool.submit(wait_for_a_step),
            pool.submit(mesh.connection.store(place.generation).get, "nothing", 30.0),
        ]
        eventually(lambda: all(job.running() for job in waiting))
        for process in (server, coordinator):
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 143
        mesh.close()
        for job in waiting:
            with pytest.raises(MeshError):
                job.result(timeout=120)


@pytest.mark.timeout(600)
def test_kill_keeps_what_was_pushed_and_a_damaged_log_is_named(tmp_path: Path, eventually) -> None:
    file, log = tmp_path / "address", tmp_path / "log"
    with ExitStack() as stack:
        stack.enter_context(
            started("coordinator", "--listen", "127.0.0.1:0", "--address-file", str(file))
        )
        eventually(file.exists, 60)
        address = file.read_text().strip()
        server = (
            "parameter-server",
            *("--coordinator", address, "--state-dir", str(log), "--replace"),
        )
        first = stack.enter_context(started(*server))
        mesh = stack.enter_context(connect(address))
        table = mesh.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
        table.push([3], np.ones((1, 2), np.float32))
        before = table.lookup(np.arange(10))
        first.kill()
        first.wait(120)

        second = stack.enter_context(started(*server))
        after = table.lookup(np.arange(10), timeout_s=60.0)
        second.kill()
        second.wait(120)
        (segment,) = log.glob("log-*")
        damaged = bytearray(segment.read_bytes())
        damaged[60] ^= 8
        segment.write_bytes(damaged)
        third = subprocess.run([*GRADMESH, *server], capture_output=True, timeout=120, check=False)

    np.testing.assert_array_equal(after, before)
    assert third.returncode == 4
    assert str(segment).encode() in third.stderr
    assert b"record 1 at byte 0 is damaged" in third.stderr
