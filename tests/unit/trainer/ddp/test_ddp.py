"""The wrapper at work: averaged gradients, no_sync, failures, buffers."""

import weakref

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor, gradient_map, no_grad, run_backward
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, BatchNorm1d, Linear, Module, Parameter, ReLU, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.ddp.comm_hooks import allreduce_hook
from gradmesh.trainer.errors import (
    MissingGradient,
    ReductionError,
    UnfinishedReduction,
)


def net(seed=0):
    generator = Generator(seed)
    return Sequential(Linear(4, 8, generator=generator), ReLU(), Linear(8, 2, generator=generator))


def gradients(module):
    return {name: p.grad.data.copy() for name, p in module.named_parameters()}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("as_view", [False, True])
def test_gradients_are_the_rank_order_average(world, inputs, size, as_view):
    def job(group):
        ddp = DistributedDataParallel(
            net(), process_group=group, gradient_as_bucket_view=as_view, bucket_cap_mb=0.0001
        )
        seen = []
        for step in range(4):
            ddp.zero_grad()
            (ddp(inputs(group.rank, step, 5, 4)) ** 2).sum().backward()
            seen.append(gradients(ddp))
        return seen, ddp.logging_data()

    results = world(size).run(job)
    alone = net()
    for step in range(4):
        alone.zero_grad()
        for rank in range(size):
            (alone(inputs(rank, step, 5, 4)) ** 2).sum().backward()
        for seen, _ in results:
            for name, parameter in alone.named_parameters():
                wanted = parameter.grad.data / np.float32(size)
                assert (seen[step][name] == wanted).all(), (step, name)
    assert results[0][1]["has_rebuilt_buckets"] == 1


def test_no_sync_accumulates_and_the_next_pass_averages(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        with ddp.no_sync():
            (ddp(inputs(group.rank, 0, 5, 4)) ** 2).sum().backward()
        local = gradients(ddp)
        (ddp(inputs(group.rank, 1, 5, 4)) ** 2).sum().backward()
        return local, gradients(ddp)

    (local_0, mean_0), (local_1, mean_1) = world(2).run(job)

    total = {}
    for rank in range(2):
        alone = net()
        for step in range(2):
            (alone(inputs(rank, step, 5, 4)) ** 2).sum().backward()
        for name, grad in gradients(alone).items():
            total[name] = total[name] + grad if name in total else grad
    for name in total:
        assert not (local_0[name] == local_1[name]).all()
        assert (mean_0[name] == total[name] / np.float32(2)).all()
        assert (mean_0[name] == mean_1[name]).all()


def test_an_unused_parameter_is_named_on_all_ranks_in_the_same_pass(world, inputs):
    class Forked(Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = Linear(4, 2), Linear(4, 2)

        def forward(self, x, both):
            return self.used(x) + self.spare(x) if both else self.used(x)

    def job(group):
        ddp = DistributedDataParallel(Forked(), process_group=group)
        ddp(inputs(group.rank, 0, 3, 4), True).sum().backward()
        with pytest.raises(MissingGradient, match=r"rank 1: spare\.weight, spare\.bias took no"):
            ddp(inputs(group.rank, 1, 3, 4), group.rank == 0).sum().backward()
        ddp.zero_grad()
        ddp(inputs(group.rank, 2, 3, 4), True).sum().backward()
        return gradients(ddp)

    first, second = world(2).run(job)
    for name, grad in first.items():
        assert (grad == second[name]).all()


def test_the_next_forward_detects_a_failed_pass(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        out = ddp(inputs(group.rank, 0, 3, 4))

        def fail(_):
            raise ArithmeticError("no gradient today")

        handle = ddp.module[0].bias.register_hook(fail)
        with pytest.raises(ArithmeticError):
            out.sum().backward()
        handle.remove()
        with pytest.raises(UnfinishedReduction, match=f"rank {group.rank}"):
            ddp(inputs(group.rank, 1, 3, 4))
        with pytest.raises(UnfinishedReduction):
            ddp.check_reduction_finished()

    world(2).run(job)


def test_update_process_group_goes_on_after_a_failure(world, inputs):
    one = world(2)
    wrappers = {}

    def fail(group):
        ddp = wrappers[group.rank] = DistributedDataParallel(net(), process_group=group)
        handle = ddp.module[0].bias.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        handle.remove()

    def go_on(group):
        ddp = wrappers[group.rank]
        ddp.zero_grad()
        ddp.update_process_group(group)
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        return gradients(ddp)

    one.run(fail)
    for group in one.groups:
        group.close()
    one.groups = one.meet()
    first, second = one.run(go_on)
    for name, grad in first.items():
        assert (grad == second[name]).all()


def test_update_process_group_continues_after_a_forward_that_failed_on_one_rank(world, inputs):
    one = world(2)
    wrappers = {}

    def fail(group):
        module = Sequential(Linear(4, 3), BatchNorm1d(3))
        ddp = wrappers[group.rank] = DistributedDataParallel(module, process_group=group)
        with ddp.no_sync():
            if group.rank == 0:
                with pytest.raises(ValueError, match="does not fit"):
                    ddp(inputs(0, 0, 3, 5))
            else:
                ddp(inputs(1, 0, 3, 4))

    def go_on(group):
        ddp = wrappers[group.rank]
        ddp.update_process_group(group)
        ddp(inputs(group.rank, 1, 3, 4)).sum().backward()
        return gradients(ddp)

    one.run(fail)
    for group in one.groups:
        group.close()
    one.groups = one.meet()
    first, second = one.run(go_on)
    for name, grad in first.items():
        assert (grad == second[name]).all()


def test_under_no_grad_nothing_is_reduced(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        if group.rank == 0:
            with no_grad():
                return ddp(inputs(0, 0, 3, 4)).shape

    assert world(2).run(job) == [(3, 2), None]


def test_backward_into_a_map_leaves_grad_alone_and_owns_its_gradients(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group, gradient_as_bucket_view=True)
        maps = []
        for step in range(3):
            into = {}
            run_backward([(ddp(inputs(group.rank, step, 3, 4)) ** 2).sum()], into=into)
            maps.append((into, {p: g.copy() for p, g in into.items()}))
            assert all(p.grad is None for p in ddp.parameters())
        for into, copies in maps:
            assert set(into) == set(ddp.parameters())
            assert all((into[p] == copies[p]).all() for p in into)
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        assert gradient_map() is None
        return [g for _, copies in maps for g in copies.values()]

    first, second = world(2).run(job)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_unused_parameters_inside_a_map(world, inputs):
    class Forked(Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = Linear(4, 2), Linear(4, 2), Linear(4, 2)

        def forward(self, x, use_b):
            return self.a(x) + self.b(x) if use_b else self.a(x)

    def job(group):
        ddp = DistributedDataParallel(Forked(), process_group=group, find_unused_parameters=True)
        for step in range(2):
            into = {}
            run_backward([ddp(inputs(group.rank, step, 3, 4), group.rank == 1).sum()], into=into)
            names = sorted(n for n, p in ddp.named_parameters() if p in into)
            assert names == ["a.bias", "a.weight", "b.bias", "b.weight"]
        return into[ddp.module.b.weight]

    first, second = world(2).run(job)
    assert (first == second).all()


def test_buffers_follow_rank_0_before_each_forward(world, inputs):
    def job(group):
        module = Sequential(Linear(4, 3), BatchNorm1d(3))
        ddp = DistributedDataParallel(module, process_group=group)
        for step in range(3):
            ddp(inputs(group.rank, step, 5, 4)).sum().backward()
        before = module[1].running_mean.data.copy()
        with no_grad():
            ddp(inputs(group.rank, 9, 5, 4))
        return before, module[1].running_mean.data

    (own_0, _), (own_1, _) = world(2).run(job)
    assert not (own_0 == own_1).all()


def test_removed_hooks_leave_gradients_local(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group, gradient_as_bucket_view=True)
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        ddp.remove_autograd_hooks()
        assert ddp.module[0].weight.grad_buffer is None
        ddp.zero_grad()
        ddp.module(inputs(group.rank, 1, 3, 4)).sum().backward()
        return gradients(ddp)

    first, second = world(2).run(job)
    assert not (first["0.weight"] == second["0.weight"]).all()


def test_a_dropped_wrapper_releases_the_module(world, inputs):
    def job(group):
        module = net()
        ddp = DistributedDataParallel(module, process_group=group)
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()
        gone = weakref.ref(ddp)
        del ddp
        assert gone() is None
        assert not module[0].weight.extras.post_hooks
        module.zero_grad()
        again = DistributedDataParallel(module, process_group=group)
        again(inputs(group.rank, 0, 3, 4)).sum().backward()
        return gradients(module)

    first, second = world(2).run(job)
    assert all((first[name] == second[name]).all() for name in first)


def test_a_second_backward_through_the_same_outputs_is_averaged_too(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        loss = (ddp(inputs(group.rank, 0, 3, 4)) ** 2).sum()
        loss.backward(retain_graph=True)
        once = gradients(ddp)
        loss.backward()
        return once, gradients(ddp)

    (once, twice), (_, other) = world(2).run(job)
    for name in once:
        assert np.allclose(twice[name], 2 * once[name])
        assert (twice[name] == other[name]).all()


def test_training_stays_equal_on_all_ranks(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(MLP([4, 16, 16, 1]), process_group=group)
        optimizer = optim.Adam(ddp.parameters(), lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            (ddp(inputs(group.rank, step, 8, 4)) ** 2).mean().backward()
            optimizer.step()
        return [p.data for p in ddp.parameters()]

    first, second, third = world(3).run(job)
    for a, b, c in zip(first, second, third, strict=True):
        assert (a == b).all()
        assert (a == c).all()


def test_two_passes_at_once_are_refused(world, inputs):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    out = ddp(inputs(0, 0, 3, 4)).sum()
    other: dict = {}

    def nested(_):
        run_backward([ddp.module(inputs(0, 1, 3, 4)).sum()], into=other)

    ddp.module[2].bias.register_hook(nested)
    with pytest.raises(ReductionError, match="two backward passes"):
        out.backward()


def test_parameter_used_only_outside_forward(world, inputs):
    class Scaled(Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = Linear(4, 2), Parameter(np.ones(1, np.float32))

        def forward(self, x):
            return self.inner(x)

    def job(group):
        ddp = DistributedDataParallel(Scaled(), process_group=group)
        for step in range(3):
            ddp.zero_grad()
            (ddp(inputs(group.rank, step, 3, 4)).sum() * ddp.module.scale).sum().backward()
        return gradients(ddp)

    first, second = world(2).run(job)
    assert all((first[name] == second[name]).all() for name in first)


def test_save_load_checkpoint(world, inputs):
    """Three steps, a reload and three more equal six."""

    def steps(ddp, rank, start):
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(start, start + 3):
            optimizer.zero_grad()
            (ddp(inputs(rank, step, 5, 4)) ** 2).mean().backward()
            optimizer.step()
        return {name: Tensor(value.data.copy()) for name, value in ddp.state_dict().items()}

    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        saved = steps(ddp, group.rank, 0)
        through = steps(ddp, group.rank, 3)
        other = DistributedDataParallel(net(5), process_group=group)
        other.load_state_dict(saved)
        again = steps(other, group.rank, 3)
        plain = net(9)
        plain.load_state_dict(saved)
        return through, again

    for through, again in world(2).run(job):
        assert all((through[name].data == again[name].data).all() for name in through)


def test_buckets_are_sent_during_backward(world, inputs):
    def job(group):
        module = Sequential(*(Linear(4, 4) for _ in range(4)))
        ddp = DistributedDataParallel(module, process_group=group, bucket_cap_mb=1e-5)
        events = []

        def hook(state, bucket):
            events.append(f"bucket {bucket.index()}")
            return allreduce_hook(state, bucket)

        ddp.register_comm_hook(None, hook)
        for place, layer in enumerate(module):
            layer.weight.register_hook(lambda grad, place=place: events.append(f"layer {place}"))
        for step in range(2):
            events.clear()
            ddp(inputs(group.rank, step, 3, 4)).sum().backward()
        return events

    for events in world(2).run(job):
        assert events.index("bucket 0") < events.index("layer 2")
        assert events.index("layer 0") < events.index("bucket 7")
        assert [event for event in events if "bucket" in event] == [f"bucket {n}" for n in range(8)]
