"""Owners of parameters that die before a step."""

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.errors import MeshError
from tests.integration.dist_autograd import functions as f
from tests.integration.dist_autograd.world import World

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def world():
    world = World(3)
    yield world
    world.close()


def test_step_changes_nothing_when_an_owner_is_gone(world):
    rrefs = [gm.remote(f"worker{n}", f.Layer, (n,)).rpc_sync().get_w() for n in (1, 2)]
    optimizer = gm.optim.DistributedOptimizer(gm.optim.SGD, rrefs, 0.1)
    was = rrefs[0].to_here().data
    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [(rrefs[0].to_here() + rrefs[1].to_here()).sum()])
        world.children[2].kill()
        world.children[2].wait(120)
        with pytest.raises(MeshError) as caught:
            optimizer.step(ctx)

    assert caught.value.remote_worker == "worker2"
    assert (rrefs[0].to_here().data == was).all()

    rest = gm.optim.DistributedOptimizer(gm.optim.SGD, rrefs[:1], 0.1)
    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [rrefs[0].to_here().sum()])
        rest.step(ctx)
    np.testing.assert_allclose(rrefs[0].to_here().data, was - 0.1, rtol=1e-4, atol=1e-6)
