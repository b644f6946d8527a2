from collections.abc import Iterator

import pytest

from tests.footprint import ROUNDS, Rounds, let_go
from tests.integration.dist_autograd.world import World

_running: list[Rounds] = []


@pytest.fixture(scope="module", autouse=True, params=range(ROUNDS) if ROUNDS > 1 else None)
def one_round() -> Iterator[None]:
    """One of the rounds in which a module runs; all in the same processes."""
    yield
    if ROUNDS > 1:
        for rounds in _running:
            rounds.end()


# Module scope: other tests of this process have an agent of their own.
@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    world = World()
    _running.append(Rounds([f"worker{rank}" for rank in range(world.size)]))
    yield world
    _running.clear()
    world.close()


@pytest.fixture
def world(shared_world: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """Four workers that keep no context before the test and none after it."""
    yield shared_world
    let_go(request)
    shared_world.wait_clean()


@pytest.fixture
def own_world() -> Iterator[World]:
    """Four workers for one test, which may kill them."""
    world = World()
    yield world
    world.close()
