"""A module on a device, averaged through host memory; on the stand-in, no GPU code runs here."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.engine.backend import Generator, to_numpy
from gradmesh.engine.backend.cuda import stand_in
from gradmesh.engine.nn import BatchNorm1d, Embedding, Linear, Module
from gradmesh.engine.optim import SGD
from gradmesh.trainer.ddp import DistributedDataParallel, SyncBatchNorm, comm_hooks
from gradmesh.trainer.process_group import ProcessGroup
from tests.cupy_stand_in import StandInArray, StandInModule


@pytest.fixture(autouse=True)
def gpu():
    with stand_in(StandInModule()):
        yield


class Net(Module):
    def __init__(self, sparse):
        super().__init__()
        generator = Generator(3)
        self.table = Embedding(10, 4, sparse=sparse, generator=generator)
        self.norm = BatchNorm1d(4)
        self.head = Linear(4, 2, generator=generator)

    def forward(self, ids):
        return self.head(self.norm(self.table(ids)))


def train(group, device, hook=None, into_map=False, sync_norm=False, sparse=True, **options):
    module = Net(sparse)
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
def test_a_device_gives_the_results_of_the_host(world, how):
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


class DeviceGroup(ProcessGroup):
    """A group that takes arrays of the device only, as NCCL does; ranks meet over sockets."""

    def __init__(self, inner):
        self.inner = inner

    backend = property(lambda self: "device")
    rank = property(lambda self: self.inner.rank)
    size = property(lambda self: self.inner.size)
    bytes_moved = property(lambda self: self.inner.bytes_moved)

    def empty(self, shape, dtype):
        return StandInArray(np.empty(shape, dtype))

    def all_reduce(self, array, op="sum"):
        return self.inner.all_reduce(_host(array), op)

    def broadcast(self, array, root):
        return self.inner.broadcast(_host(array), root)

    def all_gather(self, outputs, array):
        return self.inner.all_gather([_host(output) for output in outputs], _host(array))

    def barrier(self):
        return self.inner.barrier()

    def abort(self):
        self.inner.abort()

    def close(self):
        self.inner.close()

    def _unused(self, *args):
        raise AssertionError("not used by the wrapper")

    reduce_scatter = all_to_all = gather = scatter = send = recv = sub_group = _unused


def _host(array):
    assert type(array) is StandInArray, "NCCL takes no array of the host"
    return array.host


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"into_map": True},
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": True, "into_map": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 1e-5},
        {"static_graph": True},
        {"hook": comm_hooks.allreduce_hook},
        {"hook": comm_hooks.quantization_perchannel_hook, "sparse": False},
        {"sync_norm": True},
    ],
    ids=lambda how: "-".join(how) or "plain",
)
def test_buckets_and_sparse_gradients_in_device_memory(world, how):
    """As over NCCL: arrays that are sent are never in host memory."""
    one = world(2)
    is_exact = how.get("hook") is not comm_hooks.quantization_perchannel_hook
    on_host = {k: v for k, v in how.items() if is_exact or k != "hook"}
    host = one.run(lambda group: train(group, "cpu", **on_host))
    device = one.run(lambda group: train(DeviceGroup(group), "cuda", **how))

    scale = 1e-5 if is_exact else 2e-2
    for wanted, first, second in zip(host[0], *device, strict=True):
        assert np.allclose(first, wanted, rtol=scale, atol=max(1e-6, scale / 10))
        assert (first == second).all()
