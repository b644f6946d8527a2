"""Which passes are averaged: several forwards, several wrappers, calls past the wrapper."""

import threading

import numpy as np
import pytest

from gradmesh.engine.autograd import BackwardScope, Tensor, no_grad, run_backward
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Linear, Module
from gradmesh.trainer.ddp import DistributedDataParallel


def layer(seed=0, width=3):
    return Linear(3, width, generator=Generator(seed))


def grads(*modules):
    return [p.grad.data.copy() for module in modules for p in module.parameters()]


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert (a == b).all()


@pytest.mark.parametrize("order", ["f1 f2 b1 b2", "f1 f2 b2 b1", "f1 b1 f2 b2"])
def test_every_backward_through_an_output_is_averaged(world, inputs, order):
    def job(group):
        ddp = DistributedDataParallel(layer(), process_group=group)
        outs = {}
        for word in order.split():
            if word[0] == "f":
                outs[word[1]] = (ddp(inputs(group.rank, int(word[1]), 2, 3)) ** 2).sum()
            else:
                outs[word[1]].backward()
        return grads(ddp)

    results = world(2).run(job)
    assert_same(*results)
    alone = layer()
    for rank in range(2):
        for step in (1, 2):
            (alone(inputs(rank, step, 2, 3)) ** 2).sum().backward()
    for found, wanted in zip(results[0], grads(alone), strict=True):
        assert np.allclose(found, wanted / 2, rtol=1e-5)


def test_several_wrappers_in_one_pass(world, inputs):
    def job(group, buckets):
        first, second = layer(1), layer(2)
        wrapped = [
            DistributedDataParallel(m, process_group=group, bucket_cap_mb=buckets)
            for m in (first, second)
        ]
        for step in range(3):
            first.zero_grad()
            second.zero_grad()
            hidden = wrapped[0](inputs(group.rank, step, 2, 3)).tanh()
            (wrapped[1](hidden) ** 2).sum().backward()
        return grads(first, second)

    one = world(2)
    for buckets in (None, 1e-5):
        results = one.run(lambda group, cap=buckets: job(group, cap))
        assert_same(*results)


def test_calls_past_the_wrapper_stay_local(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(layer(), process_group=group)
        ddp(inputs(group.rank, 0, 2, 3)).sum().backward()
        ddp.zero_grad()
        if group.rank == 0:
            ddp.module(inputs(0, 1, 2, 3)).sum().backward()
            return grads(ddp)
        return None

    local = world(2).run(job)[0]
    alone = layer()
    alone(inputs(0, 1, 2, 3)).sum().backward()
    assert_same(local, grads(alone))


def test_evaluation_between_forward_and_backward(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(layer(), process_group=group)
        loss = (ddp(inputs(group.rank, 0, 2, 3)) ** 2).sum()
        with no_grad():
            ddp(inputs(group.rank, 1, 2, 3))
        loss.backward()
        return grads(ddp)

    assert_same(*world(2).run(job))


class Cut(Module):
    """Two layers with a gap in the local graph between them, as at a remote call."""

    def __init__(self):
        super().__init__()
        self.head, self.tail = layer(1), layer(2)
        self.ends = []

    def forward(self, x):
        hidden = self.head(x)
        received = Tensor(hidden.data, requires_grad=True)
        self.ends.append((hidden, received))
        return self.tail(received)


@pytest.mark.parametrize("find_unused", [False, True])
def test_a_pass_in_pieces_ends_with_its_share(world, inputs, find_unused):
    """As distributed autograd runs it: pieces on several threads, one part for the context."""

    def job(group):
        ddp = DistributedDataParallel(
            Cut(), process_group=group, find_unused_parameters=find_unused
        )
        for step in range(3):
            into = {}
            part = BackwardScope(into)
            loss = (ddp(inputs(group.rank, step, 2, 3)) ** 2).sum()
            hidden, received = ddp.module.ends.pop()

            def later(hidden=hidden, received=received, part=part, into=into):
                with part:
                    run_backward([hidden], [into.pop(received)], into=into)

            with part:
                run_backward([loss], into=into)
            thread = threading.Thread(target=later)
            thread.start()
            thread.join(30)
            part.finish()
            assert set(into) == set(ddp.parameters())
            assert all(p.grad is None for p in ddp.parameters())
        return [into[p] for p in ddp.parameters()]

    assert_same(*world(2).run(job))
