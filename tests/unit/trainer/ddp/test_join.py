"""Uneven inputs: ranks that end early mirror the others, and all end with the same model."""

import contextlib

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import BatchNorm1d, Conv2d, Embedding, Flatten, Linear, Module, Sequential
from gradmesh.trainer.ddp import (
    BufferHookLocation,
    DistributedDataParallel,
    Future,
    Join,
    Joinable,
    JoinHook,
    SyncBatchNorm,
)
from gradmesh.trainer.ddp.comm_hooks import allreduce_hook, fp16_compress_hook
from gradmesh.trainer.ddp.join import Intent
from gradmesh.trainer.errors import CollectiveMismatch, InputsExhausted


class Sometimes(Module):
    """Uses its second layer on some ranks only."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Linear(4, 4), Linear(4, 2)
        self.skips = False

    def forward(self, x):
        return self.a(x) if self.skips else self.b(self.a(x))


MODELS = {
    "linear": lambda: Sequential(Linear(4, 8), Linear(8, 2)),
    "batch_norm": lambda: Sequential(Linear(4, 3), BatchNorm1d(3)),
    "conv": lambda: Sequential(Conv2d(1, 2, 2), Flatten(), Linear(2 * 2, 2)),
    "unused": Sometimes,
}


def batch(inputs, name, rank, step):
    return inputs(rank, step, *((3, 1, 2, 3) if name == "conv" else (3, 4)))


def parameters(module):
    return [p.data.copy() for p in module.parameters()] + [b.data for b in module.buffers()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("hook", [None, allreduce_hook, fp16_compress_hook])
@pytest.mark.parametrize("by_active", [False, True])
def test_ddp_uneven_inputs(world, inputs, name, hook, by_active):
    def job(group):
        module = MODELS[name]()
        if name == "unused":
            module.skips = group.rank == 2
        ddp = DistributedDataParallel(
            module, process_group=group, find_unused_parameters=name == "unused"
        )
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join(divide_by_initial_world_size=not by_active):
            for step in range(0 if group.rank == 0 else 2 + 2 * group.rank):
                optimizer.zero_grad()
                ddp(batch(inputs, name, group.rank, step)).sum().backward()
                optimizer.step()
        assert ddp.logging_data()["join_uneven_inputs"] == 1
        return parameters(module)

    first, second, third = world(3).run(job)
    for a, b, c in zip(first, second, third, strict=True):
        assert (a == b).all()
        assert (a == c).all()


@pytest.mark.parametrize("baseline", [0, 5])
@pytest.mark.parametrize("offset", [2, 3, 10])
@pytest.mark.parametrize("early", [1, 2])
@pytest.mark.parametrize("sync_every", [1, 3])
def test_ddp_uneven_inputs_by_counts(world, inputs, baseline, offset, early, sync_every):
    """Some ranks end `offset` inputs before the others, perhaps without any."""

    def job(group):
        module = Sequential(Linear(4, 3), BatchNorm1d(3))
        ddp = DistributedDataParallel(module, process_group=group)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join():
            for step in range(baseline + (0 if group.rank < early else offset)):
                syncs = (step + 1) % sync_every == 0
                with contextlib.nullcontext() if syncs else ddp.no_sync():
                    ddp(inputs(group.rank, step, 3, 4)).sum().backward()
                if syncs:
                    optimizer.step()
                    optimizer.zero_grad()
        return parameters(module)

    first, second, third = world(3).run(job)
    for a, b, c in zip(first, second, third, strict=True):
        assert (a == b).all()
        assert (a == c).all()


@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize("as_view", [True, False])
def test_ddp_grad_div_uneven_inputs(world, by_initial, as_view):
    def job(group):
        module = Linear(1, 1, bias=False)
        ddp = DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=as_view)
        seen = []
        with ddp.join(divide_by_initial_world_size=by_initial):
            for _ in range(3 if group.rank == 0 else 5):
                ddp.zero_grad()
                ddp(Tensor(np.full((1, 1), 50, np.float32))).sum().backward()
                seen.append(float(module.weight.grad.data[0, 0]))
        return seen

    assert world(2).run(job)[1] == [50] * 3 + ([25] * 2 if by_initial else [50] * 2)


def test_ddp_join_model_equivalence(world, inputs):
    def make():
        return Linear(4, 1, generator=Generator(3))

    def job(group):
        ddp = DistributedDataParallel(make(), process_group=group)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1 * group.size)
        with ddp.join():
            for step in range(2 * (group.rank + 1)):
                optimizer.zero_grad()
                ddp(inputs(group.rank, step, 1, 4)).sum().backward()
                optimizer.step()
        return parameters(ddp)

    results = world(3).run(job)
    alone = make()
    for rank in range(3):
        for step in range(2 * (rank + 1)):
            alone.zero_grad()
            alone(inputs(rank, step, 1, 4)).sum().backward()
            optim.SGD(alone.parameters(), lr=0.1).step()
    for found, wanted in zip(results[0], parameters(alone), strict=True):
        assert np.allclose(found, wanted, rtol=1e-5)


def test_join_and_no_sync(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Linear(4, 2), process_group=group)
        with ddp.join():
            for step in range(3 + 3 * group.rank):
                if step % 2:
                    ddp(inputs(group.rank, step, 3, 4)).sum().backward()
                else:
                    with ddp.no_sync():
                        ddp(inputs(group.rank, step, 3, 4)).sum().backward()
        return parameters(ddp)

    first, second = world(2).run(job)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_ranks_agree_after_join_on_whether_buffers_come_next(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(MODELS["batch_norm"](), process_group=group)
        with ddp.join():
            # The last pass of the rank that ends first is under no_sync, that of the other is not.
            for step in range(3 + group.rank):
                with contextlib.nullcontext() if step % 2 else ddp.no_sync():
                    ddp(inputs(group.rank, step, 3, 4)).sum().backward()
        will_sync = ddp.will_sync_module_buffers()
        ddp(inputs(group.rank, 4, 3, 4)).sum().backward()
        return will_sync

    assert world(2).run(job) == [True, True]


def test_ranks_that_differ_in_no_sync_raise_on_all(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Linear(4, 2), process_group=group)
        with ddp.join():
            if group.rank == 0:
                with ddp.no_sync():
                    ddp(inputs(0, 0, 3, 4))
            else:
                ddp(inputs(1, 0, 3, 4))

    for error in world(2).errors(job):
        assert isinstance(error, CollectiveMismatch)
        assert "no_sync" in str(error)


@pytest.mark.parametrize("as_view", [True, False])
def test_throw_on_early_termination(world, inputs, as_view):
    def job(group):
        ddp = DistributedDataParallel(
            Linear(4, 2), process_group=group, gradient_as_bucket_view=as_view
        )
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        done = []

        def train():
            with ddp.join(throw_on_early_termination=True):
                for step in range(5 if group.rank == 1 else 2):
                    optimizer.zero_grad()
                    ddp(inputs(group.rank, step, 3, 4)).sum().backward()
                    optimizer.step()
                    done.append(step)

        with pytest.raises(InputsExhausted, match=r"rank 0, 2 has no inputs left"):
            train()
        return len(done), parameters(ddp)

    results = world(3).run(job)
    assert [done for done, _ in results] == [2, 2, 2]
    assert all((a == b).all() for a, b in zip(results[0][1], results[1][1], strict=True))


def test_ddp_uneven_inputs_stop_iteration_sync_bn(world, inputs):
    def job(group):
        module = SyncBatchNorm.convert(Sequential(Linear(4, 3), BatchNorm1d(3)), group)
        ddp = DistributedDataParallel(module, process_group=group)
        with pytest.raises(ValueError, match="throw_on_early_termination"):
            ddp.join()
        done = []

        def train():
            with ddp.join(throw_on_early_termination=True):
                for step in range(2 + group.rank):
                    (ddp(inputs(group.rank, step, 3, 4)) ** 2).sum().backward()
                    done.append(step)

        with pytest.raises(InputsExhausted):
            train()
        return len(done)

    assert world(2).run(job) == [2, 2]


def test_ddp_uneven_input_join_disable(world):
    def job(group):
        module = Linear(1, 1, bias=False)
        ddp = DistributedDataParallel(module, process_group=group)
        with ddp.join(enable=False, divide_by_initial_world_size=False):
            ddp(Tensor(np.full((1, 1), 2.0 * group.rank, np.float32))).sum().backward()
        assert ddp.logging_data()["join_uneven_inputs"] == 0
        return float(module.weight.grad.data[0, 0])

    assert world(2).run(job) == [1.0, 1.0]


def test_ddp_uneven_input_exception(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Linear(4, 2), process_group=group)
        with pytest.raises(KeyError, match="user's own"), ddp.join():
            raise KeyError("user's own")
        ddp(inputs(group.rank, 0, 3, 4)).sum().backward()

    world(2).run(job)


@pytest.mark.parametrize("location", list(BufferHookLocation))
def test_buffer_hooks_run_on_joined_ranks_too(world, inputs, location):
    def average(group, buffers):
        futures = []
        for buffer in buffers.values():
            if buffer.dtype == np.float32:
                memory = buffer.data
                futures.append(Future.after(group.all_reduce(memory, "avg"), memory))
        return futures

    def job(group):
        module = Sequential(Linear(4, 3), BatchNorm1d(3))
        ddp = DistributedDataParallel(module, process_group=group)
        ddp.register_buffer_comm_hook(group, average, location)
        with ddp.join():
            for step in range(1 + 2 * group.rank):
                ddp(inputs(group.rank, step, 3, 4)).sum().backward()
        return module[1].running_mean.data

    first, second = world(2).run(job)
    assert (first == second).all()


def test_sparse_gradients_and_static_graphs_join(world):
    class Bag(Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = Embedding(10, 4, sparse=True), Linear(4, 1)

        def forward(self, ids):
            return self.head(self.table(ids))

    def job(group):
        ddp = DistributedDataParallel(Bag(), process_group=group, static_graph=True)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join():
            for step in range(5 * (1 - group.rank)):
                optimizer.zero_grad()
                ddp(Tensor(np.array([step, step + 1, 3]))).sum().backward()
                optimizer.step()
        return parameters(ddp)

    first, second = world(2).run(job)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_join_takes_other_joinables(world):
    class Counter(Joinable):
        def __init__(self, group):
            self.group, self.total = group, 0

        def step(self):
            if self._join is not None:
                self._join.announce(self, Intent.ACTIVE)
            self.add(1)

        def add(self, amount):
            value = np.array([amount])
            self.group.all_reduce(value).wait()
            self.total += int(value[0])

        def join_hook(self, **options):
            counter = self

            class Hook(JoinHook):
                def main_hook(self, round_):
                    counter.add(0)

            return Hook()

        @property
        def join_process_group(self):
            return self.group

    def job(group):
        first, second = Counter(group), Counter(group)
        with Join([first, second]):
            for _ in range(1 + group.rank):
                first.step()
                second.step()
        return first.total, second.total

    assert world(3).run(job) == [(6, 6)] * 3
    with pytest.raises(ValueError, match="at least one"):
        Join([])
