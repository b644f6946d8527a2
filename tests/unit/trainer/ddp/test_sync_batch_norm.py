"""SyncBatchNorm: statistics of all ranks' batches, forward and backward."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import BatchNorm1d, BatchNorm2d, Linear, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel, SyncBatchNorm


def net():
    return Sequential(Linear(4, 3, generator=Generator(0)), BatchNorm1d(3))


def test_it_equals_one_process_on_the_joined_batch(world, inputs):
    def job(group):
        module = SyncBatchNorm.convert(net(), group)
        ddp = DistributedDataParallel(module, process_group=group)
        for step in range(3):
            ddp.zero_grad()
            (ddp(inputs(group.rank, step, 2 + group.rank, 4)) ** 3).sum().backward()
        return {n: p.grad.data for n, p in ddp.named_parameters()}, module[1].running_var.data

    results = world(3).run(job)

    alone = net()
    for step in range(3):
        alone.zero_grad()
        joined = np.concatenate([inputs(rank, step, 2 + rank, 4).data for rank in range(3)])
        (alone(Tensor(joined)) ** 3).sum().backward()
    for grads, running_var in results:
        assert np.allclose(running_var, alone[1].running_var.data, rtol=1e-5)
        for name, parameter in alone.named_parameters():
            assert np.allclose(grads[name], parameter.grad.data / 3, rtol=1e-4, atol=1e-4)


def test_conversion_keeps_values_and_evaluation_is_local(world, inputs):
    group = world(1).groups[0]
    module = Sequential(Linear(4, 3), BatchNorm1d(3), Sequential(BatchNorm2d(2)))
    module[1].weight.data[...] = 2
    module[1].running_mean.data[...] = 1
    module.eval()
    before = module[1](inputs(0, 0, 5, 3)).data
    changed = SyncBatchNorm.convert(module, group)

    assert [type(m) for m in (changed[1], changed[2][0])] == [SyncBatchNorm] * 2
    assert not changed[1].training
    assert np.allclose(changed[1](inputs(0, 0, 5, 3)).data, before)


def test_too_few_values_and_wrong_shapes_raise(world, inputs):
    layer = SyncBatchNorm(3, world(1).groups[0])
    with pytest.raises(ValueError, match="more than one value"):
        layer(inputs(0, 0, 1, 3))
    with pytest.raises(ValueError, match="cannot take"):
        layer(inputs(0, 0, 2, 4))
