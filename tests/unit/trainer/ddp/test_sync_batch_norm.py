"""SyncBatchNorm: statistics of all ranks' batches, forward and backward."""

import ml_dtypes
import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import DtypeError, Generator
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


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types_lose_nothing_far_from_zero(world, dtype):
    # A mean of 32 spreads: products and sums in the short dtype leave nothing of the spread.
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 8, 3)) / 8 + 4).astype(dtype)
    given = rng.standard_normal(x.shape).astype(dtype)

    def job(group, kind):
        layer = SyncBatchNorm(3, group)
        layer.to(dtype=kind)
        rows = Tensor(x[group.rank].astype(kind), requires_grad=True)
        out = layer(rows)
        (out * Tensor(given[group.rank].astype(kind))).sum().backward()
        assert out.dtype == rows.grad.dtype == kind
        return [t.data.astype(np.float64) for t in (out, rows.grad, layer.weight.grad)]

    one = world(2)
    got, wanted = one.run(lambda g: job(g, dtype)), one.run(lambda g: job(g, np.float32))
    for short, full in zip(got, wanted, strict=True):
        for a, b in zip(short, full, strict=True):
            assert np.abs(a - b).max() <= 4 * ml_dtypes.finfo(dtype).eps * np.abs(b).max()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_gradients_of_float32_parameters_are_float32_beside_half_types(world, inputs, dtype):
    def job(group):
        layer, alone = SyncBatchNorm(3, group), BatchNorm1d(3)
        x = Tensor(inputs(0, 0, 8, 3).data.astype(dtype), requires_grad=True)
        for module in (layer, alone):
            (module(x) ** 2).sum().backward()
        assert x.grad.dtype == dtype
        for a, b in ((layer.weight, alone.weight), (layer.bias, alone.bias)):
            assert a.grad.dtype == b.grad.dtype == np.float32
            assert np.allclose(a.grad.data, b.grad.data, rtol=1e-2, atol=1e-2)

    world(1).run(job)


def test_parameters_of_another_dtype_are_refused_and_nothing_changes(world, inputs):
    layer = SyncBatchNorm(3, world(1).groups[0])
    with pytest.raises(DtypeError, match="SyncBatchNorm: input is float64, weight is float32"):
        layer(inputs(0, 0, 4, 3).double())
    assert int(layer.num_batches_tracked) == 0


def test_without_parameters_only_the_input_has_a_gradient(world, inputs):
    layer = SyncBatchNorm(3, world(1).groups[0], affine=False)
    x = Tensor(inputs(0, 0, 4, 3).data, requires_grad=True)
    alone = Tensor(x.data, requires_grad=True)
    (layer(x) ** 3).sum().backward()
    (BatchNorm1d(3, affine=False)(alone) ** 3).sum().backward()
    assert np.allclose(x.grad.data, alone.grad.data, atol=1e-4)


@pytest.mark.parametrize("rows", [(0, 4), (4, 0), (0, 0)])
def test_empty_batches_are_taken_as_by_one_process(world, inputs, rows):
    def run(layer, x):
        x.requires_grad = True
        (layer(x) ** 3).sum().backward()
        state = [layer.running_mean, layer.running_var, layer.num_batches_tracked]
        return x.grad.data, [t.data for t in state], layer.weight.grad.data

    def job(group):
        return run(SyncBatchNorm(3, group), inputs(0, 0, rows[group.rank], 3))

    (first, state, weight), (second, state_too, weight_too) = world(2).run(job)
    wanted, wanted_state, wanted_weight = run(BatchNorm1d(3), inputs(0, 0, sum(rows), 3))
    assert np.allclose(np.concatenate([first, second]), wanted, atol=1e-4)
    assert np.allclose(weight + weight_too, wanted_weight, atol=1e-4)
    for a, b, c in zip(state, state_too, wanted_state, strict=True):
        assert (a == b).all()
        assert np.allclose(a, c)


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
