"""A rank that is stuck is given up in time, and the fuzzer leaves no process behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("torch")

from tests.parity.fuzz.ddp_ranks import ROOT, SILENT, OurRanks, TorchRanks

HERE = "tests.parity.fuzz.test_ddp_ranks"


def stay(group, config):
    """Sleep on one rank, as if it hung; return on the others."""
    if group.rank() == config:
        time.sleep(600)
    return os.getpid()


@pytest.mark.slow
def test_a_stuck_process_is_given_up_and_replaced():
    ranks = TorchRanks(2, timeout_s=15)
    try:
        first = ranks.run(f"{HERE}:stay", -1)
        ranks._timeout_s = 0.5
        stuck = ranks.run(f"{HERE}:stay", 1)
        ranks._timeout_s = 15
        assert (stuck[0], stuck[1]) == (first[0], SILENT)
        second = ranks.run(f"{HERE}:stay", -1)
        assert not {*first} & {*second}
        assert all(has_ended(pid) for pid in first)
    finally:
        ranks.close()
    assert all(has_ended(pid) for pid in second)


def test_a_stuck_thread_is_given_up_and_its_group_replaced():
    leave, ranks = threading.Event(), OurRanks(2, timeout_s=0.5)
    try:
        stuck = ranks.run(lambda group, _: leave.wait(120) if group.rank else "done", None)
        assert stuck == ["done", SILENT]
        assert ranks.run(lambda group, _: group.rank, None) == [0, 1]
    finally:
        leave.set()
        ranks.close()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_fuzzer_leaves_no_process_behind(ending):
    fuzzer = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.parity.fuzz.ddp_run"],
        cwd=ROOT,
        env={**os.environ, "FUZZ_SEEDS": "1..1000000"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        # The second line comes after some configurations, so all ranks run.
        assert all(b"fuzz-ddp" in fuzzer.stdout.readline() for _ in range(2))
        if ending == signal.SIGINT:  # Ctrl-C reaches the whole group.
            os.killpg(fuzzer.pid, ending)
        else:
            fuzzer.send_signal(ending)
        fuzzer.wait(120)
        assert wait_until(lambda: not members(fuzzer.pid))
    finally:
        if members(fuzzer.pid):
            os.killpg(fuzzer.pid, signal.SIGKILL)
        fuzzer.stdout.close()


def members(group):
    """Return the processes of a group that still run."""
    listed = subprocess.run(["ps", "-eo", "pid,pgid,stat"], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, pgid, state in rows if int(pgid) == group and state[0] != "Z"]


def has_ended(pid):
    def is_gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    return wait_until(is_gone)


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
