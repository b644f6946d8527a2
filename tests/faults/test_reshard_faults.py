"""kill -9 in each phase of a reshard: it commits or aborts, the run ends with the same bits."""

import random
from pathlib import Path

import pytest

from gradmesh.launch.local import LocalCluster
from gradmesh.protos.errors import ReshardAborted
from gradmesh.sdk.cluster.scaling import scale
from gradmesh.sdk.mesh.connect import connect
from tests.faults.scenario import (
    SERVER_POINTS,
    TRAINER_POINTS,
    Outcome,
    assert_same,
    status_of,
    train,
    wait_for,
)

STEPS = 600
SETTINGS = {"job.steps": STEPS}
PHASES = ("copying", "stopping", "draining", "sending", "adopting")
POINTS = [
    *[("parameter-server-0", f"move-{phase}") for phase in PHASES],
    *[("parameter-server-2", f"move-{phase}") for phase in PHASES],
    ("parameter-server-2", "stage-rows"),
    ("parameter-server-0", "resharded"),
    ("parameter-server-2", "resharded"),
    *[("coordinator", f"reshard-{phase}") for phase in (*PHASES[1:], "done")],
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return train(folder, settings=SETTINGS, seconds=200.0)


class Change:
    """Scales the parameter servers of a cluster in the middle of its run.

    Args:
        count: The target number.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.step = -1
        self.error = ""

    def __call__(self, cluster: LocalCluster) -> None:
        before = _servers(cluster)
        with connect(cluster.address) as mesh:
            # Only now: earlier they would be among the first servers.
            mesh.connection.servers.refresh(mesh.connection.deadline())
            cluster.folder.want_servers(max(before, self.count))
            wait_for("servers", lambda: len(_members(cluster)) == max(before, self.count))
            wait_for("the first steps", lambda: status_of(cluster).step >= 5)
            try:
                self.step = scale(mesh.connection, self.count, timeout_s=120.0).step
            except ReshardAborted as error:
                self.error = error.message
            else:
                cluster.folder.want_servers(self.count)


def _servers(cluster: LocalCluster) -> int:
    return sum(process["role"] == "parameter-server" for process in cluster.processes())


def _members(cluster: LocalCluster) -> list[str]:
    return [m.name for m in status_of(cluster).members if m.name.startswith("parameter-server")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (1, 4), (3, 2), (4, 1)])
def test_a_run_that_is_resharded_ends_with_the_same_bits(
    before: int, after: int, undisturbed: Outcome, tmp_path: Path
) -> None:
    change = Change(after)
    gone: list[str] = []

    def meanwhile(cluster: LocalCluster) -> None:
        change(cluster)
        wait_for("the end of the others", lambda: len(_members(cluster)) == after)
        wait_for("the end of their processes", lambda: _servers(cluster) == after)
        gone.extend(name for name, n in _restarts(cluster).items() if n)

    found = train(
        tmp_path / "run",
        parameter_servers=before,
        settings=SETTINGS,
        seconds=200.0,
        meanwhile=meanwhile,
    )

    assert_same(found, undisturbed)
    assert change.error == ""
    assert 0 < change.step < STEPS
    # No generation was lost by it, no process restarted.
    assert found.began_at == (0,)
    assert not gone


def _restarts(cluster: LocalCluster) -> dict[str, int]:
    return {process["name"]: process["restarts"] for process in cluster.processes()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("worker", "point"),
    [pytest.param(*case, id="-".join(case)) for case in POINTS],
)
def test_kill_in_a_phase_of_a_reshard(
    worker: str, point: str, undisturbed: Outcome, tmp_path: Path
) -> None:
    change = Change(3)

    found = train(
        tmp_path / "run",
        [f"{worker}:{point}:1"],
        settings=SETTINGS,
        seconds=200.0,
        meanwhile=change,
    )

    assert_same(found, undisturbed)
    assert found.restarts[worker] == 1
    committed = point in ("move-adopting", "resharded") or worker == "coordinator"
    assert bool(change.error) != committed
    if change.error:
        assert worker in change.error


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["before-push", "before-apply", "between-servers"])
def test_kill_of_a_trainer_during_a_reshard(
    point: str, undisturbed: Outcome, tmp_path: Path
) -> None:
    change = Change(3)

    found = train(
        tmp_path / "run",
        [f"trainer-1:{point}:20"],
        settings=SETTINGS,
        seconds=200.0,
        meanwhile=change,
    )

    assert_same(found, undisturbed)
    assert found.restarts["trainer-1"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("worker", ["parameter-server-0", "parameter-server-2"])
@pytest.mark.parametrize("point", ["move-sending", "move-adopting", "resharded"])
def test_kill_while_servers_leave(
    worker: str, point: str, undisturbed: Outcome, tmp_path: Path
) -> None:
    change = Change(2)

    found = train(
        tmp_path / "run",
        [f"{worker}:{point}:1"],
        parameter_servers=3,
        settings=SETTINGS,
        seconds=200.0,
        meanwhile=change,
    )

    assert_same(found, undisturbed)
    assert bool(change.error) == (point == "move-sending")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
def test_faults_at_random_phases_of_a_reshard(
    seed: int, undisturbed: Outcome, tmp_path: Path
) -> None:
    """A process dies in the reshard, and another one somewhere in the steps around it."""
    rng = random.Random(seed)
    worker, point = rng.choice(POINTS)
    others = [
        *[(f"trainer-{rank}", step_point) for rank in (0, 1) for step_point in TRAINER_POINTS],
        *[("parameter-server-1", step_point) for step_point in SERVER_POINTS],
    ]
    other, step_point = rng.choice(others)

    found = train(
        tmp_path / "run",
        [f"{worker}:{point}:1", f"{other}:{step_point}:{rng.randrange(5, 200)}"],
        settings=SETTINGS,
        seconds=300.0,
        meanwhile=Change(3),
        # The second fault may fire first and end the reshard before the first one.
        all_fire=False,
    )

    assert_same(found, undisturbed)
