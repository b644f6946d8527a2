"""kill -9 and SIGTERM at each phase: the run resumes and ends with the same bits."""

import random
from pathlib import Path

import pytest

from gradmesh.sdk.checkpoint.manifest import chain_of
from gradmesh.sdk.checkpoint.store import LocalStore
from tests.faults.scenario import (
    COORDINATOR_POINTS,
    JOB,
    SERVER_POINTS,
    TRAINER_POINTS,
    Outcome,
    assert_same,
    train,
)

STEP = 9
POINTS = [
    *[("trainer-1", point) for point in TRAINER_POINTS],
    ("trainer-0", "between-servers"),
    *[("parameter-server-0", point) for point in SERVER_POINTS],
    ("parameter-server-1", "prepared"),
    *[("coordinator", point) for point in COORDINATOR_POINTS],
]
CHECKPOINT_POINTS = [
    ("trainer-0", "checkpoint"),
    ("trainer-0", "checkpoint-written"),
    ("parameter-server-0", "frozen"),
    ("parameter-server-1", "snapshot-read"),
    ("coordinator", "checkpoint-reported"),
]
PHASES = [
    *[(worker, point, "") for worker, point in POINTS + CHECKPOINT_POINTS],
    # When a generation is made.
    ("coordinator", "formed", ""),
    ("trainer-0", "joined", ""),
    ("trainer-1", "joined", ""),
    # An orderly leave, and the same process joins again.
    ("trainer-0", "after-step", ":leave"),
    ("trainer-1", "before-apply", ":leave"),
    ("parameter-server-0", "prepared", ":leave"),
    ("parameter-server-1", "committed", ":leave"),
    ("coordinator", "reported", ":leave"),
    # After the last step, when the others may have left.
    ("trainer-0", "finished", ""),
    ("trainer-1", "finished", ""),
]
QUICK = {
    ("trainer-1", "between-servers"),
    ("parameter-server-0", "prepared"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("worker", "point"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id="-".join(case))
        for case in POINTS
    ],
)
def test_kill_at_a_point_of_a_step(
    worker: str, point: str, undisturbed: Outcome, tmp_path: Path
) -> None:
    found = train(tmp_path / "run", [f"{worker}:{point}:{STEP}"])

    assert_same(found, undisturbed)
    assert found.restarts[worker] == 1
    if worker != "coordinator":
        # The second generation began where the first one ended, not at the first step.
        assert len(found.began_at) == 2
        assert found.began_at[1] in (STEP, STEP + 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(50))
def test_faults_at_random_phases(seed: int, undisturbed: Outcome, tmp_path: Path) -> None:
    rng = random.Random(seed)
    # Every phase occurs; the second fault is random.
    phases = [PHASES[seed % len(PHASES)], rng.choice(PHASES)]
    faults = [
        # Far enough apart that recovery from the first usually ends before the second.
        f"{worker}:{point}:{at(point, rng.randrange(2, 12) + 14 * number)}{how}"
        for number, (worker, point, how) in enumerate(phases)
    ]
    checkpoints = tmp_path / "checkpoints"
    settings = {
        "job.checkpoint_path": checkpoints,
        "job.checkpoint_every_steps": 3,
        "job.checkpoint_keep": 100,
        "job.resume": "auto",
    }

    found = train(tmp_path / "run", sorted({*faults}), settings=settings, seconds=300.0)

    assert_same(found, undisturbed)
    kept = LocalStore(checkpoints).checkpoints()
    assert kept[-1].manifest.step == 30
    for one in kept:
        chain_of(one.path)


def at(point: str, step: int) -> int:
    """Return when a fault fires: at a step, or in the first generation."""
    if point == "finished":
        return JOB["job.steps"]
    return 1 if point in ("formed", "joined") else step


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("worker", ["trainer-0", "trainer-1"])
def test_kill_after_the_last_step(worker: str, undisturbed: Outcome, tmp_path: Path) -> None:
    """A process that restarts after the end finds a finished run."""
    found = train(tmp_path / "run", [f"{worker}:finished:{JOB['job.steps']}"], seconds=50.0)

    assert_same(found, undisturbed)
    assert found.restarts[worker] == 1
    assert found.began_at == (0,)


@pytest.mark.timeout(600)
def test_kill_in_the_last_checkpoint(undisturbed: Outcome, tmp_path: Path) -> None:
    """The others wait for the restarted process, so that the checkpoint is written again."""
    checkpoints, last = tmp_path / "checkpoints", JOB["job.steps"]

    found = train(
        tmp_path / "run",
        [f"trainer-0:checkpoint-written:{last}"],
        settings={"job.checkpoint_path": checkpoints},
        seconds=50.0,
    )

    assert_same(found, undisturbed)
    (kept,) = LocalStore(checkpoints).checkpoints()
    assert kept.manifest.step == last
    chain_of(kept.path)
