"""Parameters that take no part: found, skipped, left alone, and graphs that are static."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Function, Tensor, run_backward
from gradmesh.engine.nn import Linear, Module, ReLU
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.errors import GraphChanged, MissingGradient, RepeatedGradient


class Task(Module):
    """Two weights and an unused one; which one takes part depends on the call."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x, use_b=True):
        return self.b(self.a(x)) if use_b else self.a(x)


def grads(module):
    return [None if p.grad is None else p.grad.data.copy() for p in module.parameters()]


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_global_local_unused_params_grad(world, inputs, as_view, static):
    def job(group):
        ddp = DistributedDataParallel(
            Task(),
            process_group=group,
            find_unused_parameters=not static,
            static_graph=static,
            gradient_as_bucket_view=as_view,
        )
        seen = []
        for step in range(4):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 2, 3), use_b=group.rank == 0).sum().backward()
            seen.append(grads(ddp))
        return seen

    first, second = world(2).run(job)
    for (a0, b0, c0), (a1, b1, c1) in zip(first, second, strict=True):
        assert c0 is None
        assert c1 is None
        assert (a0 == a1).all()
        assert (b0 == b1).all()


@pytest.mark.parametrize("as_view", [False, True])
def test_a_gradient_without_further_sums_is_unchanged(world, inputs, as_view):
    def job(group):
        ddp = DistributedDataParallel(
            Task(),
            process_group=group,
            find_unused_parameters=True,
            gradient_as_bucket_view=as_view,
        )
        ddp(inputs(group.rank, 0, 2, 3)).sum().backward()
        old = ddp.module.b.weight.grad.data.copy()
        ddp.module.a.weight.grad = None
        for step in range(3):
            ddp(inputs(group.rank, step, 2, 3), use_b=False).sum().backward()
        return old, ddp.module.b.weight.grad.data

    for old, now in world(3).run(job):
        assert (old == now).all()


def test_find_unused_parameters_when_unused_parameters_empty(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Task(), process_group=group, find_unused_parameters=True)
        for step in range(3):
            ddp(inputs(group.rank, step, 2, 3), use_b=group.rank == 1).sum().backward()
        return grads(ddp)

    first, second = world(2).run(job)
    assert (first[1] == second[1]).all()


@pytest.mark.parametrize("find_unused", [False, True])
def test_ignored_output(world, inputs, find_unused):
    def job(group):
        ddp = DistributedDataParallel(
            Linear(3, 2), process_group=group, find_unused_parameters=find_unused
        )
        for step in range(8):
            out = ddp(inputs(group.rank, step, 2, 3))
            if step >= 4:
                out.sum().backward()
        return grads(ddp)

    first, second = world(2).run(job)
    assert (first[0] == second[0]).all()


def test_output_unused_in_loss_tuple_module(world, inputs):
    class Both(Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Linear(3, 3), Linear(3, 3)

        def forward(self, x):
            return {"first": self.a(x), "rest": (self.b(x),)}

    def job(group):
        ddp = DistributedDataParallel(Both(), process_group=group, find_unused_parameters=True)
        for step in range(3):
            ddp(inputs(group.rank, step, 2, 3))["first"].sum().backward()
        untouched = ddp.module.b.weight.grad
        ddp(inputs(group.rank, 0, 2, 3))["rest"][0].sum().backward()
        old = ddp.module.b.weight.grad.data.copy()
        ddp(inputs(group.rank, 1, 2, 3))["first"].sum().backward()
        return untouched, old, ddp.module.b.weight.grad.data

    for untouched, old, now in world(2).run(job):
        assert untouched is None
        assert (old == now).all()


def test_ddp_unused_params_rebuild_buckets_exception(world, inputs):
    """Upstream raises in iteration 2; here the first pass raises, with names."""

    def job(group):
        ddp = DistributedDataParallel(Task(), process_group=group)
        with pytest.raises(MissingGradient, match=r"rank 0: c\.weight took .* rank 1: c\.weight"):
            ddp(inputs(group.rank, 0, 2, 3)).sum().backward()

    world(2).run(job)


@pytest.mark.parametrize("different", [False, True])
def test_ddp_control_flow_across_ranks(world, inputs, different):
    def job(group):
        ddp = DistributedDataParallel(Task(), process_group=group, find_unused_parameters=True)
        maps = []
        for step in range(6):
            use_b = step % 2 == 1 and not (different and group.rank == 1)
            ddp(inputs(group.rank, step, 2, 3), use_b=use_b).sum().backward()
            maps.append(ddp._reducer.usage.counts().tolist())
        return maps

    for maps in world(2).run(job):
        assert maps == [[2, 0, 0], [2, 1 if different else 2, 0]] * 3


def test_usage_is_recorded_across_no_sync(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Task(), process_group=group, find_unused_parameters=True)
        with ddp.no_sync():
            ddp(inputs(group.rank, 0, 2, 3), use_b=group.rank == 0).sum().backward()
        ddp(inputs(group.rank, 1, 2, 3), use_b=False).sum().backward()
        return grads(ddp)

    first, second = world(2).run(job)
    for a, b in zip(first[:2], second[:2], strict=True):
        assert (a == b).all()


def test_skip_all_reduce_unused_parameters(world, inputs):
    def job(group, skip):
        ddp = DistributedDataParallel(
            Task(),
            process_group=group,
            find_unused_parameters=True,
            bucket_cap_mb_list=[1e-5],
            skip_all_reduce_unused_params=skip,
        )
        for step in range(2):
            ddp(inputs(group.rank, step, 2, 3), use_b=False).sum().backward()
        return ddp.logging_data()["num_buckets_reduced"], grads(ddp)

    one = world(2)
    for count, (_, b, c) in one.run(lambda group: job(group, False)):
        assert count == 3
        assert b is c is None
    for count, (a, b, c) in one.run(lambda group: job(group, True)):
        assert count == 1
        assert a is not None
        assert b is c is None


def test_ranks_that_use_different_buckets_do_not_skip_them(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(
            Task(),
            process_group=group,
            find_unused_parameters=True,
            bucket_cap_mb_list=[1e-5],
            skip_all_reduce_unused_params=True,
        )
        ddp(inputs(group.rank, 0, 2, 3), use_b=group.rank == 1).sum().backward()
        return ddp.logging_data()["num_buckets_reduced"], grads(ddp)

    (count_0, first), (count_1, second) = world(2).run(job)
    assert count_0 == count_1 == 2
    assert (first[1] == second[1]).all()


@pytest.mark.parametrize("more", [False, True])
def test_invalid_static_graph(world, inputs, more):
    def job(group):
        ddp = DistributedDataParallel(Task(), process_group=group, static_graph=True)
        for step in range(3):
            ddp(inputs(group.rank, step, 2, 3), use_b=not more).sum().backward()
        with pytest.raises(GraphChanged, match=r"rank 1: b\.weight got"):
            ddp(inputs(group.rank, 3, 2, 3), use_b=more == (group.rank == 1)).sum().backward()
        ddp(inputs(group.rank, 4, 2, 3), use_b=not more).sum().backward()

    world(2).run(job)


def test_static_graph_rebuilds_before_the_third_iteration(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(
            Task(), process_group=group, static_graph=True, bucket_cap_mb=1e-5
        )
        rebuilt = []
        for step in range(4):
            out = ddp(inputs(group.rank, step, 2, 3))
            rebuilt.append(ddp.logging_data()["has_rebuilt_buckets"])
            out.sum().backward()
        return rebuilt

    assert world(2).run(job) == [[0, 0, 1, 1]] * 2


def test_a_static_graph_may_begin_under_no_sync(world, inputs):
    def job(group, static):
        task = Task()
        for place, param in enumerate(task.parameters()):
            param.data[...] = inputs(0, 20 + place, 3, 3).data
        ddp = DistributedDataParallel(
            task, process_group=group, static_graph=static, find_unused_parameters=not static
        )
        seen = []
        for step in range(3):
            ddp.zero_grad()
            with ddp.no_sync():
                ddp(inputs(group.rank, 10 + step, 2, 3)).sum().backward()
            ddp(inputs(group.rank, step, 2, 3)).sum().backward()
            seen.append([None if g is None else g.tobytes() for g in grads(ddp)])
        return seen

    one = world(2)
    assert one.run(lambda g: job(g, True)) == one.run(lambda g: job(g, False))


def test_static_graph_multi_forward(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Linear(3, 1), process_group=group, static_graph=True)
        for step in range(3):
            ddp.zero_grad()
            outs = [ddp(inputs(group.rank, 10 * step + i, 2, 3)) for i in range(3)]
            (outs[0] * outs[1] + outs[2]).sum().backward()
        return grads(ddp)

    first, second = world(2).run(job)
    assert (first[0] == second[0]).all()


class Reenter(Function):
    """Run a backward of its own inside backward, as a checkpointed layer does."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer, ctx.given = layer, x
        return layer(Tensor(x)).data

    @staticmethod
    def backward(ctx, grad):
        x = Tensor(ctx.given, requires_grad=True)
        run_backward([ctx.layer(x)], [grad])
        return x.grad.data, None


class Checkpointed(Module):
    def __init__(self):
        super().__init__()
        self.head, self.layer = Linear(3, 3), Linear(3, 3)

    def forward(self, x):
        hidden = self.head(x)
        return Reenter.apply(Reenter.apply(hidden, self.layer), self.layer)


def test_a_duplicate_gradient_is_named(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Checkpointed(), process_group=group, bucket_cap_mb=1e-5)
        with pytest.raises(RepeatedGradient, match=r"layer\.weight came again"):
            ddp(inputs(group.rank, 0, 2, 3)).sum().backward()

    world(2).run(job)


def test_static_graph_takes_nested_passes(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Checkpointed(), process_group=group, static_graph=True)
        for step in range(4):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 2, 3)).sum().backward()
        state = {k: Tensor(v.data.copy()) for k, v in ddp.state_dict().items()}
        return state, grads(ddp)

    results = world(2).run(job)
    alone = Checkpointed()
    alone.load_state_dict(results[0][0])
    for rank in range(2):
        alone(inputs(rank, 3, 2, 3)).sum().backward()
    for found, wanted in zip(results[0][1], grads(alone), strict=True):
        assert np.allclose(found, wanted / 2, rtol=1e-5, atol=1e-6)


def test_detect_ddp_is_actually_static(world, inputs):
    def job(group, changes):
        ddp = DistributedDataParallel(Task(), process_group=group, find_unused_parameters=True)
        for step in range(4):
            ddp(inputs(group.rank, step, 2, 3), use_b=not changes or step < 2).sum().backward()
        return ddp.logging_data()["can_set_static_graph"]

    one = world(2)
    assert one.run(lambda group: job(group, False)) == [1, 1]
    assert one.run(lambda group: job(group, True)) == [0, 0]


def test_ddp_returns_tensor_with_no_grad(world, inputs):
    class Mixed(Module):
        def __init__(self):
            super().__init__()
            self.fc = Linear(3, 3)
            self.act = ReLU()

        def forward(self, x):
            out = self.act(self.fc(x))
            return out, out.detach(), Tensor(np.zeros(2, np.float32))

    def job(group):
        ddp = DistributedDataParallel(Mixed(), process_group=group, find_unused_parameters=True)
        for step in range(2):
            out, _, _ = ddp(inputs(group.rank, step, 2, 3))
            out.sum().backward()
        return grads(ddp)

    first, second = world(2).run(job)
    assert (first[0] == second[0]).all()


def test_a_shared_parameter_is_averaged_once(world, inputs):
    class Tied(Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.spare = Linear(3, 3), Linear(3, 3), Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    def job(group):
        ddp = DistributedDataParallel(Tied(), process_group=group, find_unused_parameters=True)
        for step in range(2):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 2, 3)).sum().backward()
        assert ddp.logging_data()["num_parameter_tensors"] == 5
        return ddp.module.a.weight.grad.data

    first, second = world(2).run(job)
    assert (first == second).all()
