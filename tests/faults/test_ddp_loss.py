"""A rank dies or falls silent in the middle of training: it is named, and the others continue."""

import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("ddp_process.py")
# A stopped rank is lost when the time is up; a killed one at once, however slow the machine is.
TIMEOUTS_S = {signal.SIGSTOP: 8.0, signal.SIGKILL: 60.0}


def read_line(process, timeout_s=200):
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(timeout_s), "no answer in time"
    return json.loads(process.stdout.readline())


@pytest.fixture
def start(tmp_path):
    started = []

    def start(backend, size, timeout_s):
        for rank in range(size):
            command = [sys.executable, SCRIPT, backend, tmp_path, rank, size, timeout_s]
            started.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE))
        assert [read_line(process) for process in started] == [{"running": True}] * size
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("backend", "how", "error"),
    [
        ("shm", signal.SIGKILL, "PeerLost"),
        ("tcp", signal.SIGKILL, "PeerLost"),
        ("shm", signal.SIGSTOP, "CollectiveTimeout"),
    ],
)
def test_survivors_name_the_lost_rank_and_train_in_a_new_generation(start, backend, how, error):
    processes = start(backend, 3, TIMEOUTS_S[how])
    victim = 1

    os.kill(processes[victim].pid, how)

    others = [process for rank, process in enumerate(processes) if rank != victim]
    assert [read_line(process) for process in others] == [{"error": error, "ranks": [victim]}] * 2
    ends = [read_line(process) for process in others]
    assert [(end["world"], end["rank"]) for end in ends] == [(2, 0), (2, 1)]
    assert ends[0]["digest"] == ends[1]["digest"]
