"""`gradmesh demo` from the command line."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

DEMO = (sys.executable, "-m", "gradmesh", "demo")


def marked(mark: str) -> list[int]:
    """Return the living processes that carry a mark in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def test_demo_trains_shows_its_figures_and_leaves_nothing_behind() -> None:
    mark = uuid.uuid4().hex

    done = subprocess.run(
        [*DEMO, "--steps", "20", "--trainers", "1", "--parameter-servers", "1"],
        env={**os.environ, "MARK": mark, "GRADMESH_JOB_EVAL_BATCHES": "4"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    for label in ("AUC, held out", "best AUC the teacher allows", "samples/s", "bytes moved"):
        assert label in done.stdout
    assert marked(mark) == []


def test_demo_ends_with_ctrl_c_and_leaves_nothing_behind() -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [*DEMO, "--steps", "1000000"],
        env={**os.environ, "MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        deadline = time.monotonic() + 30
        while len(marked(mark)) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.05)

        demo.send_signal(signal.SIGINT)

        assert demo.wait(120) == 130
    assert marked(mark) == []


def test_demo_that_fails_shows_the_log_of_the_culprit() -> None:
    done = subprocess.run(
        DEMO,
        env={**os.environ, "GRADMESH_COORDINATOR_LEESE_S": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2
    assert "coordinator refused its configuration" in done.stderr
    assert "did you mean 'GRADMESH_COORDINATOR_LEASE_S'?" in done.stderr
