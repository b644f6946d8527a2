"""A rank of a group dies or falls silent in the middle of an all-reduce."""

import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = pathlib.Path(__file__).with_name("rank_process.py")
TIMEOUT_S = 8.0
# Far longer than the others may take to find out that a rank is gone.
LONG_S = 40.0


def read_line(process, timeout_s):
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(timeout_s), "no answer in time"
    return json.loads(process.stdout.readline())


@pytest.fixture
def start(tmp_path):
    started = []

    def start(backend, size, timeout_s=TIMEOUT_S):
        for rank in range(size):
            command = [sys.executable, SCRIPT, backend, tmp_path, rank, size, timeout_s]
            started.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE))
        assert [read_line(process, 200) for process in started] == [{"running": True}] * size
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("backend", "size", "victim"),
    [
        pytest.param(backend, size, victim, marks=() if size == 3 else pytest.mark.slow)
        for backend in ("tcp", "shm")
        for size, victim in [(2, 0), (2, 1), (3, 0), (3, 1)]
    ]
    + [("tcp+shm", 3, victim) for victim in range(3)],
)
def test_killed_rank_is_named_by_all_others(start, backend, size, victim):
    processes = start(backend, size, LONG_S)
    killed_at = time.monotonic()

    os.kill(processes[victim].pid, signal.SIGKILL)

    others = [process for rank, process in enumerate(processes) if rank != victim]
    answers = [read_line(process, 200) for process in others]
    assert answers == [{"error": "PeerLost", "ranks": [victim]}] * (size - 1)
    assert time.monotonic() - killed_at < LONG_S
    assert [process.wait(120) for process in others] == [0] * (size - 1)


@pytest.mark.parametrize(
    ("backend", "victim"),
    [
        pytest.param(backend, victim, marks=() if victim == 2 else pytest.mark.slow)
        for backend, victims in {"tcp": (0, 2), "shm": (0, 2), "tcp+shm": (0, 1, 2)}.items()
        for victim in victims
    ],
)
def test_stopped_rank_is_named_within_the_timeout(start, backend, victim):
    processes = start(backend, 3)
    stopped_at = time.monotonic()

    os.kill(processes[victim].pid, signal.SIGSTOP)

    others = [process for rank, process in enumerate(processes) if rank != victim]
    answers = [read_line(process, 200) for process in others]
    assert answers == [{"error": "CollectiveTimeout", "ranks": [victim]}] * 2
    assert time.monotonic() - stopped_at < 10 * TIMEOUT_S
