import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradmesh.benchmarks.processes import take_turns

BENCH = """
import sys, time
from gradmesh.benchmarks.processes import start_ranks
with start_ranks("allreduce", "shm", world=2) as ranks:
    print(*(rank._process.pid for rank in ranks._processes), flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_a_killed_bench_even_while_they_are_stopped(
    number: signal.Signals,
) -> None:
    bench = subprocess.Popen([sys.executable, "-c", BENCH], stdout=subprocess.PIPE, text=True)
    assert bench.stdout is not None
    pids = [int(pid) for pid in bench.stdout.readline().split()]
    for pid in pids:
        os.killpg(pid, signal.SIGSTOP)

    bench.send_signal(number)
    bench.wait(120)
    bench.stdout.close()

    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_sides_take_turns_in_blocks() -> None:
    turns: list[tuple[str, int]] = []

    def side(name: str, seconds: float):  # type: ignore[no-untyped-def]
        def measure(rounds: int) -> list[float]:
            turns.append((name, rounds))
            return [seconds] * rounds

        return measure

    times = take_turns({"a": side("a", 0.01), "b": side("b", 0.02)}, 0.4, 2, most=15)

    assert turns[-4:] == [("a", 15), ("b", 10), ("a", 15), ("b", 10)]
    assert {name: len(found) for name, found in times.items()} == {"a": 30, "b": 20}
