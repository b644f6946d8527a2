"""On hardware: a module on a GPU gives the same results as on the CPU."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator, to_numpy
from gradmesh.engine.backend.cuda import is_available
from gradmesh.engine.nn import MLP
from gradmesh.engine.optim import SGD
from gradmesh.trainer.ddp import DistributedDataParallel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_available(), reason="needs a CUDA device"),
]


def train(group, device):
    module = MLP([8, 16, 1], generator=Generator(0)).to(device)
    devices = {"device_ids": [0]} if device == "cuda" else {}
    ddp = DistributedDataParallel(module, **devices, process_group=group)
    optimizer = SGD(module.parameters(), lr=0.1)
    for step in range(4):
        x = np.random.default_rng([group.rank, step]).random((5, 8), dtype=np.float32)
        optimizer.zero_grad()
        (ddp(Tensor(x)) ** 2).mean().backward()
        optimizer.step()
    return [to_numpy(p.data) for p in module.parameters()]


@pytest.mark.parametrize("size", [1, 2])
def test_a_gpu_gives_the_results_of_the_cpu(world, size):
    one = world(size)
    for wanted, found in zip(
        one.run(lambda group: train(group, "cpu"))[0],
        one.run(lambda group: train(group, "cuda"))[0],
        strict=True,
    ):
        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-6)
