import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig

CHILD = """
import sys, time
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig
with Lifecycle(LifecycleConfig(lifeline=True, drain_s=float(sys.argv[2]))) as life:
    life.on_drain("first", lambda s: print("first", flush=True))
    if sys.argv[1] == "hang":
        life.on_drain("hang", lambda s: print("hanging", flush=True) or time.sleep(60))
    if sys.argv[1] == "stuck":
        import hashlib
        print("ready", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)
    life.on_drain("last", lambda s: print("last", s > 0, flush=True))
    print("ready", flush=True)
    life.wait()
sys.exit(life.exit_code)
"""


def start(mode: str = "drain", drain_s: float = 20) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, mode, str(drain_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda child: child.send_signal(signal.SIGTERM), 143),
        (lambda child: child.send_signal(signal.SIGINT), 130),
        (lambda child: child.stdin.close(), 143),
    ],
    ids=["sigterm", "sigint", "lifeline"],
)
def test_process_drains_in_reverse_order(
    end: Callable[[subprocess.Popen[str]], None], code: int
) -> None:
    with start() as child:
        end(child)

        assert child.wait(120) == code
        assert child.stdout is not None
        assert child.stdout.read() == "last True\nfirst\n"


def test_hanging_drain_is_aborted_at_the_deadline() -> None:
    with start("hang", 0.2) as child:
        child.send_signal(signal.SIGTERM)

        assert child.wait(120) == 143
        assert child.stdout is not None
        assert child.stdout.read() == "last True\nhanging\n"


def test_main_thread_that_is_stuck_in_c_code_is_cut_off() -> None:
    with start("stuck", 0.2) as child:
        child.send_signal(signal.SIGTERM)

        assert child.wait(120) == 143


def test_second_signal_ends_at_once() -> None:
    with start("hang", 3600) as child:
        assert child.stdout is not None
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "last True\n"
        assert child.stdout.readline() == "hanging\n"
        child.send_signal(signal.SIGINT)

        assert child.wait(120) == 130


def test_first_request_decides_the_exit_code() -> None:
    with Lifecycle(LifecycleConfig()) as life:
        life.stop(4, "the disk is full")
        life.stop(0)

        assert life.wait(0) == 4
        assert life.stopping

    assert life.exit_code == 4


def test_wait_gives_up_at_its_timeout() -> None:
    with Lifecycle(LifecycleConfig()) as life:
        assert life.wait(0.01) is None
        assert not life.stopping

    assert life.exit_code == 0


def test_stop_from_another_thread_wakes_the_waiter() -> None:
    with Lifecycle(LifecycleConfig()) as life:
        thread = threading.Thread(target=life.stop, args=(3,))
        thread.start()

        assert life.wait(120) == 3
        thread.join()


def test_one_failing_part_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    with Lifecycle(LifecycleConfig()) as life:
        life.on_drain("socket", lambda _: closed.append("socket"))
        life.on_drain("disk", lambda _: 1 / 0)

    assert closed == ["socket"]
    assert "drain failed" in caplog.text


def test_error_in_the_block_still_drains() -> None:
    closed: list[str] = []

    def fail() -> None:
        with Lifecycle(LifecycleConfig()) as life:
            life.on_drain("socket", lambda _: closed.append("socket"))
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()

    assert closed == ["socket"]


def test_handlers_of_before_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with Lifecycle(LifecycleConfig()):
        assert signal.getsignal(signal.SIGTERM) != before

    assert signal.getsignal(signal.SIGTERM) == before


def test_watcher_cuts_off_a_main_thread_that_never_returns() -> None:
    cut: list[int] = []
    done = threading.Event()

    def hard_exit(code: int) -> None:
        cut.append(code)
        done.set()

    with Lifecycle(LifecycleConfig(drain_s=0.1), hard_exit) as life:
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 20
        while not done.is_set() and time.monotonic() < deadline:
            done.wait(0.05)

    assert cut == [143]
    assert life.exit_code == 143
