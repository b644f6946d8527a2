"""kill -9 of a rank during all-reduce: the others name it, and continue in a new generation."""

import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("rejoin_process.py")
TIMEOUT_S = 60.0


def read_line(process, timeout_s=200):
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(timeout_s), "no answer in time"
    return json.loads(process.stdout.readline())


def read_until(process, key):
    """Return the next line with a key, and the losses on the way there."""
    lost = []
    while key not in (line := read_line(process)):
        lost.append(line)
    return line, lost


@pytest.fixture
def start():
    started = []

    def start(cluster, backend, name, replaces=False):
        arguments = [cluster.address, name, backend, TIMEOUT_S, int(replaces)]
        command = [sys.executable, SCRIPT, *arguments]
        started.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "chosen"), [("auto", "shm"), ("tcp", "tcp")])
@pytest.mark.parametrize("victim", [0, 1])
def test_other_ranks_continue_in_a_new_generation(make_cluster, start, backend, chosen, victim):
    cluster = make_cluster(parameter_servers=0, trainers=3, start_servers=False)
    names = [f"trainer-{number}" for number in range(3)]
    processes = [start(cluster, backend, name) for name in names]
    first = [read_line(process) for process in processes]
    expected = {"size": 3, "backend": chosen, "total": [6.0, 6.0]}
    generation = first[0]["generation"]
    assert first == [{"generation": generation, "rank": r, **expected} for r in range(3)]

    os.kill(processes[victim].pid, signal.SIGKILL)
    processes[victim].wait(120)
    survivors = [process for rank, process in enumerate(processes) if rank != victim]
    losses = [read_line(process) for process in survivors]
    processes[victim] = start(cluster, backend, names[victim], replaces=True)

    assert losses == [{"lost": [victim], "kind": "PeerLost"}] * 2
    again = [read_until(process, "generation")[0] for process in processes]
    assert len({line["generation"] for line in again}) == 1
    assert again[0]["generation"] > generation
    for rank, line in enumerate(again):
        assert line == {"generation": line["generation"], "rank": rank, **expected}
