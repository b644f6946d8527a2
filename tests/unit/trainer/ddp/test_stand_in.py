"""A module on a device, averaged through host memory; on the stand-in, no GPU code runs here."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.engine.backend import Generator, to_numpy
from gradmesh.engine.backend.cuda import stand_in
from gradmesh.engine.backend.stand_in import StandInArray, StandInModule
from gradmesh.engine.nn import BatchNorm1d, Embedding, Linear, Module
from gradmesh.engine.optim import SGD
from gradmesh.trainer.ddp import DistributedDataParallel, SyncBatchNorm, comm_hooks


@pytest.fixture(autouse=True)
def gpu():
    with stand_in(StandInModule()):
        yield


class Net(Module):
    def __init__(self):
        super().__init__()
        generator = Generator(3)
        self.table = Embedding(10, 4, sparse=True, generator=generator)
        self.norm = BatchNorm1d(4)
        self.head = Linear(4, 2, generator=generator)

    def forward(self, ids):
        return self.head(self.norm(self.table(ids)))


def train(group, device, hook=None, into_map=False, sync_norm=False, **options):
    module = Net()
    if sync_norm:
        module = SyncBatchNorm.convert(module, group)
    module.to(device)
    devices = {"device_ids": [0]} if device == "cuda" else {}
    ddp = DistributedDataParallel(module, **devices, process_group=group, **options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = SGD(module.parameters(), lr=0.1)
    for step in range(4):
        ddp.zero_grad()
        ids = Tensor(np.random.default_rng([group.rank, step]).integers(0, 10, 6))
        loss = (ddp(ids) ** 2).sum()
        if into_map:
            grads = {}
            run_backward([loss], into=grads)
            optimizer.step(grads)
        else:
            loss.backward()
            optimizer.step()
    kind = StandInArray if device == "cuda" else np.ndarray
    assert all(type(p.data) is kind for p in module.parameters())
    return [to_numpy(p.data) for p in module.parameters()]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"into_map": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"hook": comm_hooks.allreduce_hook},
        {"sync_norm": True},
    ],
    ids=lambda how: next(iter(how), "plain"),
)
def test_a_device_gives_what_the_host_gives(world, how):
    one = world(2)
    host = one.run(lambda group: train(group, "cpu", **how))
    device = one.run(lambda group: train(group, "cuda", **how))

    for wanted, first, second in zip(host[0], *device, strict=True):
        assert np.allclose(first, wanted, rtol=1e-5, atol=1e-6)
        assert (first == second).all()


def test_options_that_need_the_group_on_the_device(world):
    group = world(1).groups[0]
    with pytest.raises(ValueError, match="not on cuda"):
        DistributedDataParallel(
            Linear(2, 2).to("cuda"), process_group=group, gradient_as_bucket_view=True
        )
    with pytest.raises(ValueError, match="but the module is on cuda:0"):
        DistributedDataParallel(Linear(2, 2).to("cuda"), [1], process_group=group)
