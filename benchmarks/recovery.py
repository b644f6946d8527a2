"""Recovery time of a parameter server that was killed.

A real process: a client pushes gradients until the log, or the snapshot that takes its place, is as
long as wanted; then the server is killed, its supervisor starts it again, and its own log says how
long it took to read everything.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradmesh.benchmarks.report import Echo, Row, as_json
from gradmesh.engine import optim
from gradmesh.launch.local import LocalCluster
from gradmesh.sdk.mesh.connect import connect

WORKLOADS = ("log", "snapshot")
_DIM = 64
_PUSH_ROWS = 8192
_NEVER = 1 << 62
_MESSAGE = "recovered from the log"
_WAIT_S = 120.0


def run(
    workloads: Sequence[str], megabytes: int, on_row: Callable[[Row], object] = lambda row: None
) -> list[Row]:
    """Measure seconds for each gigabyte of files.

    Args:
        workloads: `log` reads the records of all changes, `snapshot` the rows and little else.
        megabytes: How much is written before the server is killed.
        on_row: Called with each row as it is known.
    """
    rows = []
    for workload in workloads:
        rows.append(Row.of(workload, [_measure(workload, megabytes << 20)], []))
        on_row(rows[-1])
    return rows


def command(echo: Echo, *, workloads: Sequence[str], megabytes: int) -> Any:
    """Run `gradmesh bench recovery`."""
    echo(f"{'workload':<20}{'seconds a GB':>14}")
    return as_json(
        run(
            workloads,
            megabytes,
            on_row=lambda row: echo(f"{row.workload:<20}{row.ours:>14.2f}"),
        )
    )


def _measure(workload: str, size: int) -> float:
    snapshot_bytes = _NEVER if workload == "log" else 1 << 20
    settings = {"parameter_server.snapshot_bytes": snapshot_bytes}
    with LocalCluster(parameter_servers=1, settings=settings) as cluster:
        (server,) = [p for p in cluster.processes() if p["role"] == "parameter-server"]
        folder = cluster.folder.parameter_servers / server["name"]
        with connect(cluster.address) as mesh:
            table = mesh.table("user", dim=_DIM, optimizer=optim.Adagrad(lr=0.1))
            gradients = np.ones((_PUSH_ROWS, _DIM), np.float32)
            # Rows and their state are twice as long as the gradients of a log.
            count = max(1, size // gradients.nbytes // (1 if workload == "log" else 2))

            def push_all() -> None:
                for number in range(count):
                    table.push(np.arange(_PUSH_ROWS) + number * _PUSH_ROWS, gradients)

            push_all()
            while workload == "snapshot" and not any(folder.glob("snapshot-*[0-9]")):
                # One is taken when the log is longer than the tables are.
                push_all()
                time.sleep(0.2)
        held = _size(folder)
        log = cluster.folder.log_file(server["name"])
        os.kill(server["pid"], signal.SIGKILL)
        _wait("the server", lambda: any(_recoveries(log)))
        return next(_recoveries(log)) / (held / 1e9)


def _size(folder: Path, prefix: str = "") -> int:
    files = (p for p in folder.rglob("*") if p.name.startswith(prefix))
    return sum(p.stat().st_size for p in files if p.is_file())


def _recoveries(log: Path) -> Iterator[float]:
    for line in log.read_text().splitlines():
        if _MESSAGE in line:
            yield float(json.loads(line)["seconds"])


def _wait(what: str, is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_S
    while not is_there():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come in {_WAIT_S:g} s")
        time.sleep(0.1)
