"""One parameter server under load: idle members, half-open connections, busy clients.

A client measures its lookups alone, then beside each load, then alone again. All others are real,
too: members renew leases, busy clients look rows up without a pause, half-open connections send
nothing and are opened again when the server cuts them off.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.benchmarks.processes import MeasuringProcess, start
from gradmesh.benchmarks.report import Echo, as_json
from gradmesh.launch.local import LocalCluster

_PROCESSES = 4
"""Processes that share a kind of load."""

_SETTLE_S = 90.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """One situation.

    Args:
        workload: Its name.
        ours: Median seconds of a lookup of the measuring client.
        p99: 99th percentile of its lookups.
        slowdown: The latter in proportion to the unloaded server's.
        lookups_per_s: Lookups that all clients got in a second.
        memory_mib: Resident memory of the parameter server.
        growth: The latter in proportion to the unloaded server's.
        threads: Threads of the parameter server.
        coordinator_mib: Resident memory of the coordinator.
        coordinator_threads: Threads of the coordinator.
    """

    workload: str
    ours: float
    p99: float
    slowdown: float
    lookups_per_s: float
    memory_mib: float
    growth: float
    threads: int
    coordinator_mib: float
    coordinator_threads: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        return asdict(self)


@final
class _Scene:
    """A cluster, the client that measures, and the rows so far."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: MeasuringProcess,
        seconds: float,
        on_row: Callable[[LoadRow], object],
    ) -> None:
        self._pids = {str(p["role"]): int(p["pid"]) for p in cluster.processes()}
        self._client = client
        self._seconds = seconds
        self._on_row = on_row
        self.rows: list[LoadRow] = []

    def measure(self, workload: str, busy: tuple[MeasuringProcess, ...] = ()) -> None:
        """Add a row; `busy` processes look rows up meanwhile."""
        for process in busy:
            process.ask(seconds=self._seconds)
        times = self._client.measure(seconds=self._seconds)
        lookups = len(times)
        # While the busy clients are still connected.
        server, coordinator = self._status("parameter-server"), self._status("coordinator")
        for process in busy:
            lookups += len(process.answer())
        p99 = float(np.percentile(times, 99))
        first = self.rows[0] if self.rows else None
        row = LoadRow(
            workload=workload,
            ours=float(np.median(times)),
            p99=p99,
            slowdown=p99 / first.p99 if first else 1.0,
            lookups_per_s=lookups / self._seconds,
            memory_mib=server["VmRSS"] / 1024,
            growth=server["VmRSS"] / 1024 / first.memory_mib if first else 1.0,
            threads=server["Threads"],
            coordinator_mib=coordinator["VmRSS"] / 1024,
            coordinator_threads=coordinator["Threads"],
        )
        self.rows.append(row)
        self._on_row(row)

    def settle(self) -> None:
        """Wait until the processes have returned what clients that left had used, or for long."""
        until = time.monotonic() + _SETTLE_S
        before = self.rows[0]
        while time.monotonic() < until:
            server, coordinator = self._status("parameter-server"), self._status("coordinator")
            if (
                server["VmRSS"] / 1024 <= before.memory_mib * 1.1
                and coordinator["VmRSS"] / 1024 <= before.coordinator_mib * 1.1
            ):
                return
            time.sleep(0.2)

    def _status(self, role: str) -> dict[str, int]:
        lines = Path(f"/proc/{self._pids[role]}/status").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines)
        return {key: int(text.split()[0]) for key, text in pairs if key in ("VmRSS", "Threads")}


def run(
    members: int,
    clients: int,
    half_open: int,
    seconds: float,
    on_row: Callable[[LoadRow], object] = lambda row: None,
) -> list[LoadRow]:
    """Measure the situations one after the other.

    Args:
        members: Clients that join and only renew their leases.
        clients: Clients that look rows up all the time.
        half_open: Connections that send nothing, half of them to the coordinator.
        seconds: How long each situation is measured.
        on_row: Called with each row as it is known.
    """
    # A server offers lanes up to a number; further clients would be measured on gRPC.
    settings = {"transport.max_lanes": max(256, clients + 8)}
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(parameter_servers=1, settings=settings))
        client = stack.enter_context(start("load_clients", "busy", cluster.address, "1"))
        scene = _Scene(cluster, client, seconds, on_row)
        client.measure(seconds=min(seconds, 1.0))
        scene.measure("unloaded")
        with _spread("idle", cluster.address, members):
            scene.measure("idle-members")
            with _spread("half-open", cluster.address, half_open):
                scene.measure("half-open")
                with _spread("busy", cluster.address, clients) as busy:
                    scene.measure("busy-clients", busy)
        scene.settle()
        scene.measure("after")
        return scene.rows


@contextmanager
def _spread(kind: str, address: str, count: int) -> Iterator[tuple[MeasuringProcess, ...]]:
    """Run a kind of load in a few processes until the block ends."""
    shares = [count // _PROCESSES + (number < count % _PROCESSES) for number in range(_PROCESSES)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start("load_clients", kind, address, str(share), waits=False))
            for share in shares
            if share
        ]
        for process in processes:
            process.wait_ready()
        yield tuple(processes)


def command(echo: Echo, *, members: int, clients: int, half_open: int, seconds: float) -> Any:
    """Run `gradmesh bench load`."""
    echo(
        f"{'workload':<14}{'p50 µs':>9}{'p99 µs':>10}{'slower':>8}{'lookups/s':>11}{'MiB':>7}"
        f"{'growth':>8}{'threads':>9}{'coordinator MiB, threads':>26}"
    )

    def show(row: LoadRow) -> None:
        echo(
            f"{row.workload:<14}{row.ours * 1e6:>9,.0f}{row.p99 * 1e6:>10,.0f}{row.slowdown:>8.2f}"
            f"{row.lookups_per_s:>11,.0f}{row.memory_mib:>7,.0f}{row.growth:>8.2f}{row.threads:>9}"
            f"{row.coordinator_mib:>17,.0f}{row.coordinator_threads:>9}"
        )

    return as_json(run(members, clients, half_open, seconds, show))
