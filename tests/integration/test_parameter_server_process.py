"""A parameter server as a process: it ends when told to, whatever waits in it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import GradmeshError
from gradmesh.sdk import autograd
from gradmesh.sdk.mesh.mesh import connect
from gradmesh.sdk.nn import RemoteEmbedding

GRADMESH = (sys.executable, "-m", "gradmesh")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*GRADMESH, *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_processes_end_though_calls_wait_in_them(tmp_path: Path, eventually) -> None:
    file = tmp_path / "address"
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            started("coordinator", "--listen", "127.0.0.1:0", "--address-file", str(file))
        )
        eventually(file.exists, 30)
        address = file.read_text().strip()
        server = stack.enter_context(started("parameter-server", "--coordinator", address))
        mesh = stack.enter_context(
            connect(address, name="trainer-0", role="trainer", address="127.0.0.1:1")
        )
        pool = stack.enter_context(ThreadPoolExecutor(2))
        table = mesh.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
        place = mesh.join_trainers(20)
        mesh.start_run(place, [table])

        def wait_for_a_step() -> None:
            with autograd.context(mesh, place.mark(1)):
                RemoteEmbedding(table)([1])

        waiting = [
            pool.submit(wait_for_a_step),
            pool.submit(mesh.store(place.generation).get, "nothing", 30.0),
        ]
        eventually(lambda: all(job.running() for job in waiting))
        took_s = []
        for process in (server, coordinator):
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 143
            took_s.append(time.monotonic() - begun)
        mesh.close()
        for job in waiting:
            with pytest.raises(GradmeshError):
                job.result(timeout=10)

    assert max(took_s) < 4
