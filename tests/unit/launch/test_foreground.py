import os
import signal
from collections.abc import Callable

import pytest

from gradmesh.launch.child import ChildSpec
from gradmesh.launch.foreground import stay
from gradmesh.launch.supervisor import Outcome, Supervisor

Make = Callable[..., ChildSpec]
Supervise = Callable[..., Supervisor]

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("ready", flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_cluster_in_order(
    spec: Make, supervise: Supervise, number: int, code: int
) -> None:
    lines: list[str] = []

    def on_line(name: str, line: str) -> None:
        lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), number)

    outcome = stay(supervise([spec("a")], on_line=on_line), drain_s=30)

    assert outcome == (Outcome(0, "stopped on request"), code)
    assert lines == ["ready", "drained"]


def test_second_signal_kills(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise(
        [spec("a", STUBBORN)],
        on_line=lambda name, line: os.kill(os.getpid(), signal.SIGINT),
        grace_s=3600,
    )

    outcome = stay(supervisor, drain_s=3600)

    assert outcome == (Outcome(0, "stopped on request"), 130)


def test_cluster_that_ends_by_itself_gives_its_own_code(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise([spec("a", "raise SystemExit(2)")])

    outcome, code = stay(supervisor, drain_s=30)

    assert code == 2
    assert outcome.child == "a"
