import os
import signal
from collections.abc import Callable, Iterator, Sequence

import pytest

from gradmesh.launch.child import ChildSpec
from gradmesh.launch.errors import NoCluster
from gradmesh.launch.foreground import LauncherWatch, wait_for_end
from gradmesh.launch.launcher import (
    ClusterRequest,
    ClusterView,
    Launcher,
    ProcessState,
    ProcessView,
    Role,
)
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

    outcome = wait_for_end(supervise([spec("a")], on_line=on_line), drain_s=30)

    assert outcome == (Outcome(0, "stopped on request"), code)
    assert lines == ["ready", "drained"]


def test_second_signal_kills(spec: Make, supervise: Supervise, send: Callable[[int], None]) -> None:
    supervisor = supervise(
        [spec("a", STUBBORN)],
        on_line=lambda name, line: send(signal.SIGINT),
        grace_s=3600,
    )

    outcome = wait_for_end(supervisor, drain_s=3600)

    assert outcome == (Outcome(0, "stopped on request"), 130)


def test_cluster_that_ends_by_itself_gives_its_own_code(spec: Make, supervise: Supervise) -> None:
    supervisor = supervise([spec("a", "raise SystemExit(2)")])

    outcome, code = wait_for_end(supervisor, drain_s=30)

    assert code == 2
    assert outcome.child == "a"


class Still(Launcher):
    """A cluster without progress; None is no cluster."""

    def __init__(self, *states: ProcessState, gone: bool = False, failure: str = "") -> None:
        self._states, self._gone, self._failure = states, gone, failure

    def status(self) -> ClusterView:
        if self._gone:
            raise NoCluster("nowhere", "")
        views = [
            ProcessView(name=f"trainer-{rank}", role="trainer", state=state)
            for rank, state in enumerate(self._states)
        ]
        return ClusterView(address="127.0.0.1:1", processes=views, failure=self._failure)

    def up(self, request: ClusterRequest) -> str:
        raise NotImplementedError

    def run(
        self, request: ClusterRequest, on_line: Callable[[str, str], None], drain_s: float
    ) -> int:
        raise NotImplementedError

    def logs(
        self, names: Sequence[str] = (), *, follow: bool = False, tail: int | None = None
    ) -> Iterator[tuple[str, str]]:
        raise NotImplementedError

    def scale(self, role: Role, count: int) -> None:
        raise NotImplementedError

    def down(self, timeout_s: float) -> bool:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("launcher", "until_done", "code"),
    [
        (Still("running", "done"), True, None),
        (Still("done", "done"), False, None),
        (Still("done", "done"), True, 0),
        (Still("running", "failed"), False, 4),
        (Still(gone=True), False, 4),
        (Still("running", failure="the trainers were given up"), False, 4),
    ],
)
def test_the_wait_ends_with_the_work_or_its_failure(
    launcher: Launcher, until_done: bool, code: int | None
) -> None:
    outcome = LauncherWatch(launcher, until_done).wait(0.01)

    assert (None if outcome is None else outcome.exit_code) == code


def test_the_failed_one_is_named() -> None:
    outcome = LauncherWatch(Still("running", "failed"), False).wait(0.01)

    assert outcome is not None
    assert outcome.child == "trainer-1"


@pytest.mark.parametrize("killed", [False, True])
def test_the_wait_ends_on_request(killed: bool) -> None:
    watched = LauncherWatch(Still("running"), False)
    watched.kill() if killed else watched.request_stop()

    outcome = watched.wait(120)

    assert outcome is not None
    assert outcome.exit_code == 0
    assert watched.killed is killed
