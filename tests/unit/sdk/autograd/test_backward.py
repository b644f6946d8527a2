"""Backward passes over several workers, each with its own contexts and server."""

import threading
import time

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.protos.errors import BackwardFailed, ContextReleased, GradientMissing, WorkerLost
from gradmesh.sdk.autograd.backward import backward
from tests.unit.sdk.autograd.workers import make_workers


def leaf(*values, dtype=np.float32):
    return Tensor(np.array(values, dtype), requires_grad=True)


@pytest.fixture
def abc():
    with make_workers("a", "b", "c") as workers:
        yield workers


def wait_until(condition, seconds=10.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        threading.Event().wait(0.01)


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_the_worked_example(abc, mode):
    a, b, _ = abc
    t1, t2, t4 = leaf(1, 2), leaf(3, 4), leaf(5, 6)

    with a.context() as ctx:
        t3 = a.call(b, lambda x, y: x + y, t1, t2)
        backward(ctx, [(t3 * t4).sum()], mode=mode)
        grads = ctx.gradients()

    assert grads.keys() == {t1, t2, t4}
    assert grads[t1].tolist() == grads[t2].tolist() == [5, 6]
    assert grads[t4].tolist() == [4, 6]
    assert t1.grad is None


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_a_chain_of_workers_and_back(abc, mode):
    a, b, c = abc
    weights = {worker.name: leaf(2, 3) for worker in abc}
    x = leaf(1, 2)

    def on_b(t):
        return b.call(c, lambda u: u * weights["c"], t * weights["b"]) * weights["b"]

    with a.context() as ctx:
        loss = (a.call(b, on_b, x * weights["a"])).sum()
        backward(ctx, [loss], mode=mode)
        grads = {w.name: w.contexts.find(ctx.id).gradients() for w in abc}

    np.testing.assert_array_equal(grads["a"][x], [2 * 2 * 2 * 2, 3 * 3 * 3 * 3])
    np.testing.assert_array_equal(grads["a"][weights["a"]], [1 * 8, 2 * 27])
    np.testing.assert_array_equal(grads["b"][weights["b"]], [2 * 2 * 2 * 2, 2 * 3 * 3 * 3 * 2])
    np.testing.assert_array_equal(grads["c"][weights["c"]], [2 * 2 * 2, 2 * 27])
    assert {name: len(grad) for name, grad in grads.items()} == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_back_and_forth_between_two(abc, mode):
    a, b, _ = abc
    x = leaf(0.5, 0.25)

    def on_b(t):
        return b.call(a, lambda u: u * u, t) * 2

    with a.context() as ctx:
        t = x
        for _ in range(3):
            t = a.call(b, on_b, t) + x
        backward(ctx, [t.sum()], mode=mode)
        found = ctx.gradients()[x]

    y = leaf(0.5, 0.25)
    t = y
    for _ in range(3):
        t = t * t * 2 + y
    into = {}
    run_backward([t.sum()], into=into)
    np.testing.assert_allclose(found, into[y], rtol=1e-6)


def test_calls_to_oneself(abc):
    a, *_ = abc
    x = leaf(1, 2)

    with a.context() as ctx:
        y = a.call(a, lambda t: t * 3, x)
        backward(ctx, [y.sum()])

    assert ctx.gradients()[x].tolist() == [3, 3]


def test_values_outside_the_loss_need_no_gradient_in_smart_mode(abc):
    a, b, c = abc
    x, unused, w = leaf(1, 2), leaf(3, 4), leaf(5, 6)

    with a.context() as ctx:
        a.call(c, lambda t: t * w, unused)
        y, _ = a.call(b, lambda t, u: (t * 2, u * 3), x, unused)
        backward(ctx, [y.sum()])
        on_c = c.contexts.find(ctx.id).gradients()

    assert set(ctx.gradients()) == {x}
    assert on_c == {}


def test_an_unused_send_in_fast_mode_is_named_by_the_deadline(abc):
    a, b, c = abc
    x, unused = leaf(1, 2), leaf(3, 4)

    with a.context() as ctx:
        a.call(c, lambda t: t * 2, unused)
        y = a.call(b, lambda t: t * 2, x)
        begun = time.monotonic()
        with pytest.raises(GradientMissing, match=r"message 1 from a to c.*mode='smart'"):
            backward(ctx, [y.sum()], mode="fast", timeout_s=3.0, retain_graph=True)
        assert time.monotonic() - begun < 10
        assert ctx.gradients() == {}

        backward(ctx, [y.sum()])

    assert set(ctx.gradients()) == {x}


def test_fast_mode_sends_zeros_for_an_argument_that_is_not_used(abc):
    a, b, _ = abc
    x, unused = leaf(1, 2), leaf(3, 4)

    with a.context() as ctx:
        y = a.call(b, lambda t, u: t * 2, x, unused)
        backward(ctx, [y.sum()], mode="fast", retain_graph=True)
        fast = ctx.gradients()
    with a.context() as ctx:
        y = a.call(b, lambda t, u: t * 2, x, unused)
        backward(ctx, [y.sum()])
        smart = ctx.gradients()

    assert fast[unused].tolist() == [0, 0]
    assert set(smart) == {x}


def test_backwards_accumulate_and_concurrent_ones_are_serialised(abc):
    a, b, _ = abc
    x, w = leaf(1, 2), leaf(5, 6)

    with a.context() as ctx:
        y = a.call(b, lambda t: t * w, x).sum()
        threads = [
            threading.Thread(target=backward, args=(ctx, [y]), kwargs={"retain_graph": True})
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        on_b = b.contexts.find(ctx.id).gradients()

    assert ctx.gradients()[x].tolist() == [40, 48]
    assert on_b[w].tolist() == [8, 16]


def test_an_error_on_a_remote_worker_names_it_and_changes_nothing(abc):
    a, b, c = abc
    x, w = leaf(1, 2), leaf(5, 6)
    failing = True

    def explode(grad):
        if failing:
            raise ValueError("no gradient today")

    def on_c(t):
        t = t * 1
        t.register_hook(explode)
        return t * 2

    with a.context() as ctx:
        y = a.call(b, lambda t: b.call(c, on_c, t) * w, x).sum()
        for _ in range(3):
            with pytest.raises(BackwardFailed, match=r"on c: ValueError: no gradient today"):
                backward(ctx, [y], retain_graph=True)
        wait_until(lambda: b.contexts.find(ctx.id).gradients() == {})
        failing = False
        backward(ctx, [y])
        on_b = b.contexts.find(ctx.id).gradients()

    assert ctx.gradients()[x].tolist() == [10, 12]
    assert on_b[w].tolist() == [2, 4]


def test_a_lost_worker_ends_the_pass_for_all(abc):
    a, b, c = abc
    x = leaf(1, 2)

    with a.context() as ctx:
        y = a.call(b, lambda t: b.call(c, lambda u: u * 2, t) * 3, x).sum()
        c.server.drain(0.0)
        begun = time.monotonic()
        with pytest.raises(WorkerLost, match="c is gone"):
            backward(ctx, [y])
        assert time.monotonic() - begun < 10
        assert b.contexts.counters()["num_current_backward_passes"] == 0

    with a.context() as ctx:
        backward(ctx, [a.call(b, lambda t: t * 2, x).sum()])
    assert ctx.gradients()[x].tolist() == [2, 2]


def test_release_reaches_all_participants_and_late_messages_do_not_revive_the_context(abc):
    a, b, c = abc
    x = leaf(1, 2)

    with a.context() as ctx:
        a.call(b, lambda t: b.call(c, lambda u: u * 2, t), x)
        note = a.recorder.outgoing([x], "b", forced=True)
        opened = [w.contexts.open_count() for w in abc]

    wait_until(lambda: [w.contexts.open_count() for w in abc] == [0, 0, 0])
    assert opened == [1, 1, 1]
    with pytest.raises(ContextReleased), b.recorder.handling(note):
        pass
    with pytest.raises(ContextReleased, match="released"):
        backward(ctx, [(x * 2).sum()])
    assert b.contexts.open_count() == 0


def test_releasing_a_context_ends_its_backward(abc):
    a, b, _ = abc
    x = leaf(1, 2)

    def leave(grad):
        b.contexts.release(ctx.id)

    def on_b(t):
        t = t * 1
        t.register_hook(leave)
        return t * 2

    with a.context() as ctx:
        y = a.call(b, on_b, x).sum()
        with pytest.raises(ContextReleased):
            backward(ctx, [y])

    with a.context() as again:
        backward(again, [a.call(b, lambda t: t * 2, x).sum()])


def test_dtypes_and_row_gradients_travel_as_they_are(abc):
    a, b, _ = abc
    from gradmesh.engine.autograd.ops import take_rows

    table = Tensor(np.zeros((6, 2), np.float32), requires_grad=True)
    wide = leaf(1, 2, dtype=np.float64)

    with a.context() as ctx:
        y, z = a.call(b, lambda t, u: (t * 2, u * 3), table, wide)
        rows = take_rows(y, np.array([1, 4]))
        backward(ctx, [rows.sum(), z.sum()])
        grads = ctx.gradients()

    assert grads[wide].dtype == np.float64
    assert grads[wide].tolist() == [3, 3]
    dense = grads[table] if isinstance(grads[table], np.ndarray) else grads[table].to_dense()
    np.testing.assert_array_equal(dense[:, 0], [0, 2, 0, 0, 2, 0])


def test_many_contexts_at_once(abc):
    a, b, c = abc
    w = leaf(3, 4)
    failures = []

    def train(factor):
        try:
            for _ in range(10):
                x = leaf(1.0 * factor, 2.0)
                with a.context() as ctx:
                    y = a.call(b, lambda t: b.call(c, lambda u: u * w, t) * 2, x)
                    backward(ctx, [y.sum()])
                    assert ctx.gradients()[x].tolist() == [6, 8]
                    assert c.contexts.find(ctx.id).gradients()[w].tolist() == [2 * factor, 4]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    wait_until(lambda: [worker.contexts.open_count() for worker in abc] == [0, 0, 0])
