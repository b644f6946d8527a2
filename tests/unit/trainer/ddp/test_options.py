"""Mixed precision, delayed and ignored parameters, optimizers in backward, inputs and buffers."""

from collections import namedtuple
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor, no_grad
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import BatchNorm1d, Linear, Module, Parameter, ReLU, Sequential
from gradmesh.trainer.ddp import (
    BufferHookLocation,
    DistributedDataParallel,
    Future,
    MixedPrecision,
    apply_optimizer_in_backward,
    in_backward_optimizers,
    set_params_and_buffers_to_ignore,
)
from gradmesh.trainer.ddp.tensor_tree import map_tensors, tensors_in
from gradmesh.trainer.errors import MissingGradient, ReductionError, RepeatedGradient


def net():
    generator = Generator(2)
    return Sequential(Linear(4, 8, generator=generator), ReLU(), Linear(8, 2, generator=generator))


def train(ddp, optimizer, inputs, rank, steps=3):
    for step in range(steps):
        ddp.zero_grad()
        (ddp(inputs(rank, step, 5, 4)) ** 2).mean().backward()
        if optimizer is not None:
            optimizer.step()
    return [p.data.copy() for p in ddp.parameters()]


@pytest.mark.parametrize(
    ("precision", "scale"),
    [
        (MixedPrecision(param_dtype="float16", reduce_dtype="float32"), 5e-3),
        (MixedPrecision(param_dtype="bfloat16"), 5e-2),
        (MixedPrecision(reduce_dtype="bfloat16"), 2e-2),
    ],
)
def test_ddp_native_mixed_precision(world, inputs, precision, scale):
    def job(group, mixed):
        ddp = DistributedDataParallel(net(), process_group=group, mixed_precision=mixed)
        assert all(p.dtype == np.float32 for p in ddp.parameters())
        out = ddp(inputs(group.rank, 0, 5, 4))
        assert all(p.dtype == np.float32 for p in ddp.parameters())
        if mixed is not None and mixed.param_dtype is not None:
            assert str(out.dtype) == mixed.param_dtype
        out.sum().backward()
        with ddp.no_sync():
            ddp(inputs(group.rank, 1, 5, 4)).sum().backward()
        assert all(p.grad.dtype == np.float32 for p in ddp.parameters())
        return train(ddp, optim.SGD(ddp.parameters(), lr=0.1), inputs, group.rank)

    one = world(2)
    full, short = one.run(lambda g: job(g, None)), one.run(lambda g: job(g, precision))
    for a, b, wanted in zip(short[0], short[1], full[0], strict=True):
        assert (a == b).all()
        assert np.abs(a - wanted).max() < scale


def test_mixed_precision_casts_buffers_and_refuses_hooks(world):
    module = Sequential(Linear(4, 3), BatchNorm1d(3))
    precision = MixedPrecision(param_dtype="float16", buffer_dtype="float16")
    ddp = DistributedDataParallel(
        module, process_group=world(1).groups[0], mixed_precision=precision
    )
    assert module[1].running_mean.dtype == np.float16
    assert module[1].num_batches_tracked.dtype == np.int64
    with pytest.raises(ReductionError, match="mixed_precision"):
        ddp.register_comm_hook(None, lambda state, bucket: Future.done(bucket.buffer()))
    with pytest.raises(ValueError, match="float dtype"):
        MixedPrecision(param_dtype="int32")


@pytest.mark.parametrize("reduce_dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("param_dtype", [None, "bfloat16"])
def test_mixed_precision_takes_views_and_they_change_no_bit(
    world, inputs, param_dtype, reduce_dtype
):
    precision = MixedPrecision(param_dtype=param_dtype, reduce_dtype=reduce_dtype)

    def job(group, as_view):
        ddp = DistributedDataParallel(
            net(),
            process_group=group,
            mixed_precision=precision,
            gradient_as_bucket_view=as_view,
            bucket_cap_mb=1e-4,
        )
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        kept = []
        for step in range(3):
            optimizer.zero_grad(set_to_none=step == 1)
            with ddp.no_sync():
                ddp(inputs(group.rank, 7 + step, 5, 4)).sum().backward()
            (ddp(inputs(group.rank, step, 5, 4)) ** 2).mean().backward()
            kept.append(ddp.module[0].weight.grad)
            optimizer.step()
        assert all(p.grad.dtype == np.float32 for p in ddp.parameters())
        assert not as_view or np.shares_memory(kept[-1].data, kept[-2].data)
        return [p.data.tobytes() for p in ddp.parameters()]

    one = world(2)
    copied, viewed = one.run(lambda g: job(g, False)), one.run(lambda g: job(g, True))
    assert copied[0] == copied[1] == viewed[0] == viewed[1]


def test_delayed_parameters_are_averaged_in_one_piece(world, inputs):
    def job(group, delays):
        module = net()
        options = {}
        if delays:
            options = {
                "delay_all_reduce_named_params": [
                    ("2.weight", module[2].weight),
                    ("2.bias", module[2].bias),
                ],
                "param_to_hook_all_reduce": module[0].weight,
            }
        ddp = DistributedDataParallel(module, process_group=group, **options)
        return train(ddp, optim.SGD(ddp.parameters(), lr=0.1), inputs, group.rank)

    one = world(2)
    plain, delayed = one.run(lambda g: job(g, False)), one.run(lambda g: job(g, True))
    for wanted, a, b in zip(plain[0], delayed[0], delayed[1], strict=True):
        assert (a == wanted).all()
        assert (b == wanted).all()


def test_all_parameters_may_be_delayed(world, inputs):
    def job(group):
        module = net()
        ddp = DistributedDataParallel(
            module,
            process_group=group,
            delay_all_reduce_named_params=list(module.named_parameters()),
            param_to_hook_all_reduce=module[0].bias,
        )
        return train(ddp, optim.SGD(ddp.parameters(), lr=0.1), inputs, group.rank)

    first, second = world(2).run(job)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_a_delayed_gradient_after_its_trigger_is_named_on_all_ranks(world, inputs):
    def job(group):
        module = net()
        ddp = DistributedDataParallel(
            module,
            process_group=group,
            delay_all_reduce_named_params=[("0.weight", module[0].weight)],
            param_to_hook_all_reduce=module[2].weight,
        )
        with pytest.raises(RepeatedGradient, match=r"0\.weight came after"):
            ddp(inputs(group.rank, 0, 5, 4)).sum().backward()

    world(2).run(job)


def test_ddp_ignore_params_arg(world, inputs):
    class Own(Module):
        def __init__(self, rank):
            super().__init__()
            self.shared = Linear(4, 2)
            self.own = Linear(4, 2 + rank)
            self.scale = Parameter(np.full(1, 1.0 + rank, np.float32))
            self.register_buffer("seen", Tensor(np.full(1, float(rank), np.float32)))

        def forward(self, x):
            return self.shared(x).sum() + self.own(x).sum() + (self.scale * x.sum()).sum()

    def job(group):
        module = Own(group.rank)
        set_params_and_buffers_to_ignore(module, ["own.weight", "own.bias", "scale", "seen"])
        ddp = DistributedDataParallel(module, process_group=group)
        for step in range(3):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 5, 4)).backward()
        return module

    first, second = world(2).run(job)
    assert first.own.weight.shape != second.own.weight.shape
    assert (first.shared.weight.grad.data == second.shared.weight.grad.data).all()
    assert first.scale.grad.data[0] != second.scale.grad.data[0]
    assert (first.scale.data[0], second.scale.data[0]) == (1, 2)
    assert (first.seen.data[0], second.seen.data[0]) == (0, 1)
    with pytest.raises(KeyError, match="nothing"):
        set_params_and_buffers_to_ignore(first, ["nothing"])


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("as_view", [False, True])
def test_ddp_apply_optim_in_backward(world, inputs, kind, as_view):
    def separate(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        return train(ddp, kind(ddp.parameters(), lr=0.05), inputs, group.rank)

    def inside(group):
        module = net()
        apply_optimizer_in_backward(kind, module.parameters(), {"lr": 0.05})
        assert len(in_backward_optimizers(module.parameters())) == 4
        ddp = DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=as_view)
        end = train(ddp, None, inputs, group.rank)
        assert all(p.grad is None for p in ddp.parameters())
        return end

    one = world(2)
    for wanted, a, b in zip(one.run(separate)[0], *one.run(inside), strict=True):
        assert (a == wanted).all()
        assert (b == wanted).all()


def test_apply_optimizer_in_backward_without_a_wrapper(inputs):
    separate, inside = net(), net()
    apply_optimizer_in_backward(optim.SGD, inside.parameters(), {"lr": 0.05})
    wanted = train(separate, optim.SGD(separate.parameters(), lr=0.05), inputs, 0)
    found = train(inside, None, inputs, 0)
    assert all((a == b).all() for a, b in zip(wanted, found, strict=True))


def test_fused_optimizer_steps_and_is_stepped_on_no_failure(world, inputs):
    def separate(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        return train(ddp, optim.Adam(ddp.parameters(), lr=0.05), inputs, group.rank)

    def fused(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        optimizer = ddp.register_fused_optim(optim.Adam, lr=0.05)
        with pytest.raises(ReductionError, match="optimizer steps"):
            ddp.register_fused_optim(optim.Adam, lr=0.05)
        end = train(ddp, None, inputs, group.rank)
        with pytest.raises(MissingGradient):
            (ddp(inputs(group.rank, 9, 5, 4)).detach() + ddp.module[2].bias).sum().backward()
        assert all((a == p.data).all() for a, p in zip(end, ddp.parameters(), strict=True))
        assert optimizer.lr == 0.05
        return end

    one = world(2)
    for wanted, found in zip(one.run(separate)[0], one.run(fused)[1], strict=True):
        assert (found == wanted).all()


def test_init_sync_can_be_left_out(world):
    def job(group):
        module = Linear(3, 2 + group.rank)
        DistributedDataParallel(module, process_group=group, init_sync=False)
        return module.weight.shape

    assert world(2).run(job) == [(2, 3), (3, 3)]


@pytest.mark.parametrize("cap", [None, 0, 0.001, 1.5, 100])
@pytest.mark.parametrize("batched", [False, True])
def test_bucket_caps_change_no_bit(world, inputs, cap, batched):
    def job(group, **options):
        ddp = DistributedDataParallel(net(), process_group=group, **options)
        return train(ddp, optim.SGD(ddp.parameters(), lr=0.1), inputs, group.rank)

    one = world(3)
    plain = one.run(job)
    other = one.run(lambda g: job(g, bucket_cap_mb=cap, batched_grad_copy=batched))
    listed = one.run(lambda g: job(g, bucket_cap_mb_list=[0.0001, 0.0002]))
    for wanted, a, b in zip(plain[0], other[1], listed[2], strict=True):
        assert (a == wanted).all()
        assert (b == wanted).all()


Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Out:
    first: Tensor
    rest: list


def test_ddp_namedtuple_and_other_structures_pass_through(world, inputs):
    class Through(Module):
        def __init__(self):
            super().__init__()
            self.fc = Linear(4, 2)
            self.kinds = []

        def forward(self, pair, by_name, plain):
            self.kinds.append((type(pair), type(by_name), plain))
            return Out(self.fc(pair.a), [self.fc(by_name["x"])])

    def job(group):
        ddp = DistributedDataParallel(Through(), process_group=group, find_unused_parameters=True)
        x = inputs(group.rank, 0, 3, 4)
        out = ddp(Pair(x, None), by_name={"x": x}, plain="text")
        (out.first + out.rest[0]).sum().backward()
        assert ddp.module.kinds == [(Pair, dict, "text")]
        return ddp.module.fc.weight.grad.data

    first, second = world(2).run(job)
    assert (first == second).all()


def test_tensors_are_found_and_changed_in_structures():
    x, y = Tensor(np.zeros(1)), Tensor(np.ones(1))

    class Owned:
        def is_owner(self):
            return True

        def local_value(self):
            return y

    value = {"a": [x, Pair(y, 3)], "b": Out(x, [y]), "c": Owned(), "d": object()}
    assert [id(t) for t in tensors_in(value)] == [id(t) for t in (x, y, x, y, y)]
    moved = map_tensors({"a": [x, Pair(y, 3)]}, lambda t: Tensor(t.data + 1))
    assert moved["a"][0].item() == 1
    assert isinstance(moved["a"][1], Pair)


class Buffered(Module):
    def __init__(self, rank):
        super().__init__()
        self.fc = Linear(4, 2)
        self.register_buffer("state", Tensor(np.full(2, float(rank + 1), np.float32)))

    def forward(self, x):
        return self.fc(x)


def test_ddp_broadcast_buffer(world, inputs):
    def job(group, **options):
        module = Buffered(group.rank)
        ddp = DistributedDataParallel(module, process_group=group, **options)
        start = module.state.data[0]
        module.state = Tensor(np.full(2, 10.0 + group.rank, np.float32))
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        return start, module.state.data[0]

    one = world(2)
    assert one.run(job) == [(1, 10), (1, 10)]
    alone = one.run(lambda g: job(g, forward_sync_buffers=False))
    assert alone == [(1, 10), (1, 11)]


@pytest.mark.parametrize("location", list(BufferHookLocation))
@pytest.mark.parametrize("returns", [True, False])
def test_ddp_buffer_hook_allreduce(world, inputs, location, returns):
    def hook(group, buffers):
        assert list(buffers) == ["state"]
        work = group.all_reduce(buffers["state"].data, "avg")
        if returns:
            return Future.after(work, buffers["state"].data)
        work.wait()
        return None

    def job(group):
        module = Buffered(group.rank)
        ddp = DistributedDataParallel(module, process_group=group)
        ddp.register_buffer_comm_hook(group, hook, location)
        module.state.data[...] = group.rank
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        return module.state.data[0]

    assert world(2).run(job) == [0.5, 0.5]
    ddp = DistributedDataParallel(Buffered(0), process_group=world(1).groups[0])
    with pytest.raises(TypeError, match="callable"):
        ddp.register_buffer_comm_hook(None, 3)


def test_buffers_are_copied_by_the_forward_after_a_synchronised_one(world, inputs):
    def job(group):
        module = Buffered(group.rank)
        ddp = DistributedDataParallel(module, process_group=group)
        seen = []

        def run(context):
            module.state.data[...] = group.rank
            will = ddp.will_sync_module_buffers()
            with context:
                ddp(inputs(group.rank, 0, 3, 4))
            assert module.state.data[0] == (0 if will else group.rank)
            seen.append(will)

        for context in (ddp.no_sync(), ddp.no_sync(), nullcontext(), nullcontext(), no_grad()):
            run(context)
        run(nullcontext())
        return seen

    assert world(2).run(job) == [[True, False, False, True, True, False]] * 2


def test_broadcast_buffers_is_the_old_name_and_covers_wrapping(world, inputs):
    def job(group, **options):
        module = Buffered(group.rank)
        ddp = DistributedDataParallel(module, process_group=group, **options)
        start = module.state.data[0]
        module.state.data[...] = 10 + group.rank
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        return start, module.state.data[0]

    one = world(2)
    with pytest.warns(FutureWarning, match="use forward_sync_buffers"):
        assert one.run(lambda g: job(g, broadcast_buffers=True)) == [(1, 10), (1, 10)]
    with pytest.warns(FutureWarning, match="use forward_sync_buffers"):
        alone = one.run(lambda g: job(g, broadcast_buffers=False))
    assert alone == [(1, 10), (2, 11)]
    with pytest.warns(FutureWarning, match="and counts"):
        both = one.run(lambda g: job(g, broadcast_buffers=False, forward_sync_buffers=True))
    assert both == [(1, 10), (1, 10)]
