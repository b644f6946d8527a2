"""DDP under distributed autograd: four trainers, a remote worker and a master, all processes."""

import numpy as np
import pytest

import gradmesh as gm
from tests.integration.dist_autograd import hybrid
from tests.integration.dist_autograd.world import World

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def trainers():
    world = World(6)
    try:
        gm.rpc_sync(hybrid.REMOTE, hybrid.make_remote_parts)
        everywhere(hybrid.join_group, 1)
        yield world
        everywhere(hybrid.close_group, ranked=False)
    finally:
        world.close()


def everywhere(function, *args, ranked=True):
    futures = [
        gm.rpc_async(name, function, (rank, *args) if ranked else args, timeout_s=120)
        for rank, name in enumerate(hybrid.TRAINERS)
    ]
    return [future.result() for future in futures]


@pytest.mark.parametrize(
    ("mode", "zero"),
    [("none", (False, False)), ("outside", (True, True)), ("inside", (False, True))],
)
def test_backward_ddp(trainers, mode, zero):
    """test_backward_no_ddp, test_backward_ddp_outside, test_backward_ddp_inside."""
    for _ in range(3):
        for grads in everywhere(hybrid.train, mode, False):
            assert [bool((np.abs(grad) < 1e-5).all()) for grad in grads] == list(zero)


def test_backward_ddp_outside_uneven_inputs(trainers):
    for _ in range(2):
        assert len(everywhere(hybrid.train, "outside", True)) == 4


@pytest.mark.parametrize(("counts", "by_initial"), [([1, 1, 1, 1], False), ([3, 1, 3, 1], True)])
def test_ddp_comparison(trainers, counts, by_initial):
    """test_ddp_comparison, test_ddp_comparison_uneven_inputs."""
    assert everywhere(hybrid.compare, counts, by_initial) == [True] * 4


def test_ddp_dist_autograd_sparse_grads(trainers):
    assert everywhere(hybrid.compare_sparse) == [True] * 4


@pytest.mark.parametrize("place", [f"{hybrid.REMOTE}/cpu", hybrid.REMOTE])
def test_ddp_dist_autograd_local_vs_remote(trainers, place):
    assert everywhere(hybrid.compare_remote, place) == [True] * 4
