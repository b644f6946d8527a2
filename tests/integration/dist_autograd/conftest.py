from collections.abc import Iterator

import pytest

from tests.integration.dist_autograd.world import World


# A module's, not the session's: other tests of this process have an agent of their own.
@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """Four workers that keep no context before the test and none after it."""
    yield shared_world
    shared_world.wait_clean()


@pytest.fixture
def own_world() -> Iterator[World]:
    """Four workers of the test's own, which it may kill."""
    world = World()
    yield world
    world.close()
