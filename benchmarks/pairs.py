"""Scaling of lookups and pushes with clients and servers: one of each against several.

Every client is a process that asks all servers. Where there are more processes than cores they
share them, so the report says how many cores there were.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, final

from gradmesh.benchmarks.processes import MeasuringProcess, start
from gradmesh.benchmarks.report import Echo, as_json
from gradmesh.launch.local import LocalCluster

COUNTS = (1024, 65536)
"""Ids of one call."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Rows moved in a second by all clients together.

    Args:
        workload: Its name.
        ours: Seconds a row, with several clients and servers.
        peer: Seconds a row, with one of each.
        ratio: How many times more rows a second that is.
        rows_s: Rows a second, with several.
        cores: Cores that the processes had.
    """

    workload: str
    ours: float
    peer: float
    ratio: float
    rows_s: float
    cores: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        return asdict(self)


def run(
    pairs: int,
    lane: str,
    seconds: float,
    on_row: Callable[[PairRow], object] = lambda row: None,
    durability: str = "off",
) -> list[PairRow]:
    """Measure both workloads with one client and server, and with several.

    Args:
        pairs: How many clients, and how many servers.
        lane: The lane of the calls.
        seconds: About how long a measurement takes.
        on_row: Called with each row as it is known.
        durability: Of the servers.
    """
    names = [(workload, count) for workload in ("pull", "push") for count in COUNTS]
    speeds = [_speeds(number, lane, names, seconds, durability) for number in (1, pairs)]
    rows = []
    for (workload, count), one, many in zip(names, *speeds, strict=True):
        row = PairRow(
            workload=f"{workload}-{count}-{lane}-{pairs}x{pairs}",
            ours=1 / many,
            peer=1 / one,
            ratio=many / one,
            rows_s=many,
            cores=len(os.sched_getaffinity(0)),
        )
        rows.append(row)
        on_row(row)
    return rows


def _speeds(
    number: int, lane: str, names: Sequence[tuple[str, int]], seconds: float, durability: str
) -> list[float]:
    """Return the rows a second of each workload."""
    with ExitStack() as stack:
        settings = {"parameter_server.durability": durability}
        cluster = stack.enter_context(LocalCluster(parameter_servers=number, settings=settings))
        clients = [
            stack.enter_context(start("lookup", cluster.address, lane)) for _ in range(number)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(number))
        return [_speed(pool, clients, lane, *name, seconds) for name in names]


def _speed(
    pool: ThreadPoolExecutor,
    clients: Sequence[MeasuringProcess],
    lane: str,
    workload: str,
    count: int,
    seconds: float,
) -> float:
    def ask(client: MeasuringProcess, rounds: int) -> float:
        return sum(client.measure(lane=lane, workload=workload, count=count, rounds=rounds))

    alone_s = ask(clients[0], 5) / 5
    rounds = max(3, int(seconds / alone_s))
    list(pool.map(ask, clients, [5] * len(clients)))
    begun = time.perf_counter()
    list(pool.map(ask, clients, [rounds] * len(clients)))
    return len(clients) * rounds * count / (time.perf_counter() - begun)


def command(
    echo: Echo, *, pairs: int, lanes: Sequence[str], durability: str, seconds: float
) -> Any:
    """Run `gradmesh bench lookup --pairs N`."""
    heading = f"{'workload':<24}{'rows/s, one pair':>18}{'rows/s, all':>14}"
    echo(f"{heading}{'ratio':>8}{'cores':>7}")

    def show(row: PairRow) -> None:
        echo(
            f"{row.workload:<24}{1 / row.peer:>18,.0f}{row.rows_s:>14,.0f}{row.ratio:>8.2f}"
            f"{row.cores:>7}"
        )

    return as_json(
        row for lane in lanes for row in run(pairs, lane, seconds, show, durability=durability)
    )
