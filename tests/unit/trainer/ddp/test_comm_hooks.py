"""Communication hooks: registration by users, and the built-in hooks."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Embedding, Linear, Module, ReLU, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel, Future, GradBucket, all_reduce_rows
from gradmesh.trainer.ddp import comm_hooks as hooks
from gradmesh.trainer.errors import CollectiveMismatch, ReductionError


def net():
    generator = Generator(1)
    return Sequential(
        Linear(16, 32, generator=generator), ReLU(), Linear(32, 4, generator=generator)
    )


def train(group, inputs, hook=None, state=None, steps=4, make=net, **options):
    ddp = DistributedDataParallel(make(), process_group=group, **options)
    if hook is not None:
        ddp.register_comm_hook(state(group) if callable(state) else state, hook)
    optimizer = optim.SGD(ddp.parameters(), lr=0.05)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        (ddp(inputs(group.rank, step, 6, 16)) ** 2).mean().backward()
        seen.append([p.grad.data.copy() for p in ddp.parameters()])
        optimizer.step()
    return seen, [p.data.copy() for p in ddp.parameters()]


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert (a == b).all()


def assert_near(first, second, scale):
    for a, b in zip(first, second, strict=True):
        assert np.abs(a - b).max() <= scale * max(np.abs(b).max(), 1e-3)


def test_ddp_comm_hook_future_passing_cpu(world, inputs):
    def fill(state, bucket: GradBucket) -> Future:
        return Future.done(bucket.buffer()).then(lambda b: b * 0 + state)

    results = world(2).run(lambda group: train(group, inputs, fill, 7.0))
    for seen, _ in results:
        assert all((grad == 7).all() for step in seen for grad in step)


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("state", [None, lambda group: group])
def test_ddp_hook_parity_allreduce(world, inputs, as_view, state):
    one = world(3)
    options = {"gradient_as_bucket_view": as_view, "bucket_cap_mb": 0.001}
    plain = one.run(lambda group: train(group, inputs, **options))
    hooked = one.run(lambda group: train(group, inputs, hooks.allreduce_hook, state, **options))

    for (seen, end), (hooked_seen, hooked_end) in zip(plain, hooked, strict=True):
        assert_same(seen[-1], hooked_seen[-1])
        assert_same(end, hooked_end)


@pytest.mark.parametrize(
    ("hook", "scale"),
    [
        (hooks.fp16_compress_hook, 2e-3),
        (hooks.bf16_compress_hook, 2e-2),
        (hooks.fp16_compress_wrapper(hooks.allreduce_hook), 2e-3),
        (hooks.bf16_compress_wrapper(hooks.allreduce_hook), 2e-2),
        (hooks.quantization_pertensor_hook, 5e-2),
        (hooks.quantization_perchannel_hook, 1e-2),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_compression_is_near_and_equal_on_all_ranks(world, inputs, hook, scale):
    one = world(2)
    plain = one.run(lambda group: train(group, inputs, steps=1))
    short = one.run(lambda group: train(group, inputs, hook, steps=1))

    assert_same(short[0][1], short[1][1])
    assert_near(short[0][0][0], plain[0][0][0], scale)


def test_noop_hook_sends_nothing(world, inputs):
    first, second = world(2).run(lambda group: train(group, inputs, hooks.noop_hook, steps=1))
    assert not (first[0][0][0] == second[0][0][0]).all()


@pytest.mark.parametrize("hook", [hooks.power_sgd_hook, hooks.batched_power_sgd_hook])
def test_ddp_hook_parity_power_sgd(world, inputs, hook):
    """Before it starts it is a plain average; at full rank it is one, too."""
    one = world(2)
    plain = one.run(lambda group: train(group, inputs))

    def state(_):
        return hooks.PowerSGDState(None, start_power_sgd_iter=1000)

    later = one.run(lambda group: train(group, inputs, hook, state))
    assert_same(plain[0][1], later[0][1])

    def full(_):
        return hooks.PowerSGDState(
            None, matrix_approximation_rank=64, start_power_sgd_iter=2, min_compression_rate=0.01
        )

    exact = one.run(lambda group: train(group, inputs, hook, full))
    assert_near(exact[0][1], plain[0][1], 1e-4)
    assert_same(exact[0][1], exact[1][1])


def test_power_sgd_sends_less_and_makes_up_for_it(world):
    rng = np.random.default_rng(0)
    target = rng.standard_normal((32, 48)).astype(np.float32)

    def job(group, state):
        layer = Linear(48, 32, bias=False, generator=Generator(0))
        ddp = DistributedDataParallel(layer, process_group=group)
        ddp.register_comm_hook(state, hooks.power_sgd_hook)
        optimizer = optim.SGD(ddp.parameters(), lr=0.5)
        for _ in range(60):
            optimizer.zero_grad()
            loss = ((ddp(Tensor(np.eye(48, dtype=np.float32))) - Tensor(target.T)) ** 2).sum()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    states = [hooks.PowerSGDState(None, 2, start_power_sgd_iter=2) for _ in range(2)]
    losses = world(2).run(lambda group: job(group, states[group.rank]))

    assert losses[0] == losses[1]
    assert losses[0] < 0.2 * float((target**2).sum())
    assert states[0].compression_rate() > 5


def test_power_sgd_state_checks_its_options():
    with pytest.raises(ValueError, match="above 1"):
        hooks.PowerSGDState(None, start_power_sgd_iter=1)
    with pytest.raises(ValueError, match="at least 1"):
        hooks.PowerSGDState(None, 0)


def test_ddp_hook_parity_post_local_sgd(world, inputs):
    one = world(4)

    def job(group):
        pairs = [group.sub_group([0, 1]), group.sub_group([2, 3])]
        own = next(pair for pair in pairs if pair is not None)
        state = hooks.PostLocalSGDState(None, own, start_local_sgd_iter=2)
        ddp = DistributedDataParallel(net(), process_group=group)
        ddp.register_comm_hook(state, hooks.post_local_sgd_hook)
        seen = []
        for step in range(4):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 6, 16)).sum().backward()
            seen.append(ddp.module[0].weight.grad.data.copy())
        with_own = ddp.module[0].weight.data
        with_own += group.rank
        hooks.average_parameters([ddp.module[0].weight], group)
        return seen, with_own.copy()

    results = one.run(job)
    for step in range(4):
        grads = [seen[step] for seen, _ in results]
        assert (grads[0] == grads[1]).all()
        assert (grads[2] == grads[3]).all()
        assert (grads[0] == grads[2]).all() == (step < 2)
    assert all((weight == results[0][1]).all() for _, weight in results)


def test_without_a_subgroup_the_second_phase_averages_nothing(world, inputs):
    def state(group):
        return hooks.PostLocalSGDState(None, None, start_local_sgd_iter=1)

    (first, _), (second, _) = world(2).run(
        lambda group: train(group, inputs, hooks.post_local_sgd_hook, state, steps=2)
    )

    assert (first[0][0] == second[0][0]).all()
    assert (first[1][0] != second[1][0]).any()


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
@pytest.mark.parametrize("as_view", [False, True])
def test_ddp_hook_with_optimizer_parity(world, inputs, kind, as_view):
    def separate(group):
        ddp = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=0.001)
        optimizer = kind(ddp.parameters(), lr=0.01)
        for step in range(4):
            optimizer.zero_grad()
            (ddp(inputs(group.rank, step, 6, 16)) ** 2).mean().backward()
            optimizer.step()
        return [p.data for p in ddp.parameters()]

    def fused(group):
        ddp = DistributedDataParallel(
            net(), process_group=group, bucket_cap_mb=0.001, gradient_as_bucket_view=as_view
        )
        optimizer = kind(ddp.parameters(), lr=0.01)
        hook = hooks.hook_then_optimizer(hooks.allreduce_hook, optimizer)
        ddp.register_comm_hook(None, hook)
        for step in range(4):
            ddp.zero_grad()
            (ddp(inputs(group.rank, step, 6, 16)) ** 2).mean().backward()
        return [p.data for p in ddp.parameters()]

    one = world(2)
    assert_same(one.run(separate)[0], one.run(fused)[1])


class Bag(Module):
    def __init__(self):
        super().__init__()
        self.table = Embedding(10, 4, sparse=True, generator=Generator(0))

    def forward(self, ids):
        return self.table(ids)


@pytest.mark.parametrize("hook", [hooks.allreduce_hook, hooks.fp16_compress_hook, None])
def test_ddp_comm_hook_sparse_gradients(world, hook):
    def own(state, bucket):
        grad = bucket.buffer()
        assert bucket.is_sparse()
        assert bucket.gradients() == [grad]
        return all_reduce_rows(bucket.group, grad, bucket.group.size)

    def job(group):
        ddp = DistributedDataParallel(Bag(), process_group=group)
        ddp.register_comm_hook(None, hook or own)
        ids = np.array([[1, 1, 2], [2, 3, 3]][group.rank])
        ddp(Tensor(ids)).sum().backward()
        return ddp.module.table.weight.grad

    for grad in world(2).run(job):
        dense = grad.to_dense()
        assert dense[:, 0].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_invalid_comm_hook_init(world):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])

    with pytest.raises(TypeError, match="callable"):
        ddp.register_comm_hook(None, 1)

    def wrong_bucket(state, bucket: int) -> Future:
        raise AssertionError

    with pytest.raises(ValueError, match=r"bucket .* GradBucket"):
        ddp.register_comm_hook(None, wrong_bucket)

    def wrong_result(state, bucket: GradBucket) -> int:
        raise AssertionError

    with pytest.raises(ValueError, match=r"result .* Future"):
        ddp.register_comm_hook(None, wrong_result)


def test_invalid_comm_hook_return_type(world, inputs):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    ddp.register_comm_hook(None, lambda state, bucket: 1)
    with pytest.raises(RuntimeError, match="returned int"):
        ddp(inputs(0, 0, 2, 16)).sum().backward()

    other = DistributedDataParallel(net(), process_group=world(1).groups[0])
    other.register_comm_hook(None, lambda state, bucket: Future.done(np.zeros(3)))
    with pytest.raises(CollectiveMismatch, match="3 elements"):
        other(inputs(0, 0, 2, 16)).sum().backward()


def test_ddp_comm_hook_register_just_once(world):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    ddp.register_comm_hook(None, hooks.allreduce_hook)
    with pytest.raises(ReductionError, match="allreduce_hook"):
        ddp.register_comm_hook(None, hooks.noop_hook)
    with pytest.raises(ReductionError, match="there is a communication hook"):
        ddp.register_fused_optim(optim.SGD, lr=0.1)


def test_ddp_comm_hook_logging(world):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    assert ddp.logging_data()["comm_hook"] == ""
    ddp.register_comm_hook(None, hooks.power_sgd_hook)
    assert ddp.logging_data()["comm_hook"] == "power_sgd_hook"


def test_buckets_show_their_contents(world, inputs):
    shown = []

    def hook(state, bucket):
        shown.append((bucket.index(), bucket.is_last(), len(bucket.parameters()), repr(bucket)))
        views = bucket.gradients()
        assert sum(view.size for view in views) == bucket.buffer().size
        bucket.set_buffer(bucket.buffer() * 0 + 2)
        assert all((view == 2).all() for view in views)
        with pytest.raises(ValueError, match="does not fit"):
            bucket.set_buffer(np.zeros(1, np.float32))
        return Future.done(bucket.buffer())

    group = world(1).groups[0]
    train(group, inputs, hook, steps=2, bucket_cap_mb=0.0001)
    assert [entry[:3] for entry in shown] == [
        (0, True, 4),
        (0, False, 1),
        (1, False, 2),
        (2, True, 1),
    ]


@pytest.mark.parametrize("as_view", [False, True])
def test_accumulate_gradients_no_sync_with_hook(world, inputs, as_view):
    def job(group, hook):
        ddp = DistributedDataParallel(net(), process_group=group, gradient_as_bucket_view=as_view)
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        for _ in range(2):
            ddp.zero_grad()
            with ddp.no_sync():
                (ddp(inputs(group.rank, 0, 6, 16)) ** 2).mean().backward()
            (ddp(inputs(group.rank, 1, 6, 16)) ** 2).mean().backward()
        return [p.grad.data for p in ddp.parameters()]

    one = world(2)
    plain = one.run(lambda group: job(group, None))
    hooked = one.run(lambda group: job(group, hooks.allreduce_hook))
    assert_same(plain[0], hooked[1])


@pytest.mark.parametrize("hook", [hooks.allreduce_hook, hooks.fp16_compress_hook])
@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_a_hook_on_one_rank_only_raises_on_all(world, inputs, hook, backend):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        if group.rank == 1:
            ddp.register_comm_hook(None, hook)
        ddp(inputs(group.rank, 0, 6, 16)).sum().backward()

    for error in world(2, backend=backend).errors(job):
        assert isinstance(error, CollectiveMismatch)
        assert "all_reduce" in str(error)
