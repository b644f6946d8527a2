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


@pytest.fixture
def send(until: Callable[[Callable[[], bool]], None]) -> Callable[[int], None]:
    """Send this process a signal as soon as it is handled: a child may be ready before that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def send(number: int) -> None:
        until(lambda: all(signal.getsignal(n) is not handler for n, handler in before.items()))
        os.kill(os.getpid(), number)

    return send


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_cluster_in_order(
    spec: Make, supervise: Supervise, send: Callable[[int], None], number: int, code: int
) -> None:
    lines: list[str] = []

    def on_line(name: str, line: str) -> None:
        lines.append(line)
        if line == "ready":
            send(number)

    outcome = stay(supervise([spec("a")], on_line=on_line), drain_s=30)

    assert outcome == (Outcome(0, "stopped on request"), code)
    assert lines == ["ready", "drained"]


def test_second_signal_kills(spec: Make, supervise: Supervise, send: Callable[[int], None]) -> None:
    supervisor = supervise(
        [spec("a", STUBBORN)],
        on_line=lambda name, line: send(signal.SIGINT),
        grace_s=3600,
    )

    outcome = stay(supervisor, drain_s=3600)

    assert outcome == (Outcome(0, "stopped on request"), 130)


def test_cluster_that_ends_by_itself_gives_its_own_code(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise([spec("a", "raise SystemExit(2)")])

    outcome, code = stay(supervisor, drain_s=30)

    assert code == 2
    assert outcome.child == "a"
