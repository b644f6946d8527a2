"""kill -9 at each point of a step: the run goes on where it was and ends with the same bits."""

import random
from pathlib import Path

import pytest

from tests.faults.scenario import (
    COORDINATOR_POINTS,
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
QUICK = {
    ("trainer-1", "between-servers"),
    ("trainer-0", "between-servers"),
    ("parameter-server-0", "prepared"),
    ("parameter-server-0", "before-prepare"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.timeout(200)
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
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(50))
def test_kills_at_random_points(seed: int, undisturbed: Outcome, tmp_path: Path) -> None:
    rng = random.Random(seed)
    faults = set()
    while len(faults) < 2:
        worker, point = rng.choice(POINTS)
        # Far enough from each other that one is over before the next comes.
        faults.add(f"{worker}:{point}:{rng.randrange(2, 12) + 14 * len(faults)}")

    found = train(tmp_path / "run", sorted(faults), seconds=200.0)

    assert_same(found, undisturbed)
