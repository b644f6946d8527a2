"""Gradients may be views of their bucket; a gradient that a user stored never changes."""

import numpy as np
import pytest

from gradmesh.engine.autograd import run_backward
from gradmesh.engine.nn import Linear, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel


def net():
    return Sequential(Linear(4, 8), Linear(8, 2))


KEEPERS = {
    "nothing": lambda p: None,
    "tensor": lambda p: p.grad,
    "array": lambda p: p.grad.data,
    "numpy": lambda p: p.grad.numpy(),
    "view": lambda p: p.grad.data[:1],
    "view of a view": lambda p: p.grad.data.reshape(-1)[1:].reshape(-1, 1),
    "memory": lambda p: memoryview(p.grad.data),
}


@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize("backend", ["tcp", "local", "shm"])
def test_a_stored_gradient_never_changes(world, inputs, keeper, backend):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=1e-5)
        kept = []
        for step in range(8):
            out = ddp(inputs(group.rank, step, 3, 4))
            if step:
                kept += [(KEEPERS[keeper](p), p.grad.data.copy(), p.grad) for p in ddp.parameters()]
                kept = [(held, np.array(held), None) for held, _, _ in kept if held is not None]
            ddp.zero_grad()
            (out**2).sum().backward()
            for held, then, _ in kept:
                assert (np.asarray(held) == then).all()
        return [p.grad.data.copy() for p in ddp.parameters()]

    first, *others = world(1 if backend == "local" else 2, backend=backend).run(job)
    for other in others:
        assert all((a == b).all() for a, b in zip(first, other, strict=True))


def test_memory_is_reused_when_it_is_not_referenced(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group)
        places = set()
        for step in range(6):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 3, 4)).sum().backward()
            places.add(ddp.module[0].weight.grad.data.__array_interface__["data"][0])
            assert ddp.module[0].weight.grad_buffer is None
        return len(places)

    # One before and one after the buckets were rebuilt.
    assert world(2).run(job) == [2, 2]


def test_gradients_accumulate_in_place_as_always(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(Linear(4, 2), process_group=group)
        weight = ddp.module.weight
        ddp(inputs(0, 0, 3, 4)).sum().backward()
        held = weight.grad
        once = held.data.copy()
        ddp(inputs(0, 0, 3, 4)).sum().backward()
        assert weight.grad is held
        return np.allclose(held.data, 2 * once)

    assert world(2).run(job) == [True, True]


@pytest.mark.parametrize("as_view", [False, True])
def test_a_gradient_map_leaves_grad_unchanged_in_any_memory(world, inputs, as_view):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group, gradient_as_bucket_view=as_view)
        for step in range(4):
            ddp.zero_grad()
            ddp(inputs(group.rank, step, 3, 4)).sum().backward()
            before = [p.grad.data.copy() for p in ddp.parameters()]
            into = {}
            run_backward([ddp(inputs(group.rank, step, 3, 4)).sum()], into=into)
            for parameter, old in zip(ddp.parameters(), before, strict=True):
                assert (parameter.grad.data == old).all()
                assert (into[parameter] == old).all()
                assert not np.shares_memory(into[parameter], parameter.grad.data)

    world(2).run(job)
