from collections.abc import Callable, Iterator, Sequence

import pytest

from gradmesh.launch.errors import NoCluster
from gradmesh.launch.launcher import (
    ClusterRequest,
    ClusterView,
    Launcher,
    ProcessState,
    ProcessView,
    Role,
)
from gradmesh.launch.watched import Watched


class Still(Launcher):
    """A cluster that stands still; None is none."""

    def __init__(self, *states: ProcessState, gone: bool = False) -> None:
        self._states, self._gone = states, gone

    def status(self) -> ClusterView:
        if self._gone:
            raise NoCluster("nowhere", "")
        views = [
            ProcessView(name=f"trainer-{rank}", role="trainer", state=state)
            for rank, state in enumerate(self._states)
        ]
        return ClusterView(address="127.0.0.1:1", processes=views)

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
    ],
)
def test_the_wait_ends_with_the_work_or_its_failure(
    launcher: Launcher, until_done: bool, code: int | None
) -> None:
    outcome = Watched(launcher, until_done).wait(0.01)

    assert (None if outcome is None else outcome.exit_code) == code


def test_the_failed_one_is_named() -> None:
    outcome = Watched(Still("running", "failed"), False).wait(0.01)

    assert outcome is not None
    assert outcome.child == "trainer-1"


@pytest.mark.parametrize("killed", [False, True])
def test_the_wait_ends_on_request(killed: bool) -> None:
    watched = Watched(Still("running"), False)
    watched.kill() if killed else watched.request_stop()

    outcome = watched.wait(10)

    assert outcome is not None
    assert outcome.exit_code == 0
    assert watched.killed is killed
