"""Workers that die, fall silent or are cut off in the middle of a backward pass."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.errors import DeadlineExceeded, MeshError, Unreachable, WorkerLost
from tests.integration.dist_autograd import functions as f
from tests.integration.dist_autograd.world import World

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


def leaf():
    return gm.tensor(np.ones((3, 3), np.float32), requires_grad=True)


@pytest.mark.parametrize(
    ("victim", "mode"),
    [
        (3, "smart"),
        pytest.param(1, "fast", marks=pytest.mark.slow),
        pytest.param(2, "smart", marks=pytest.mark.slow),
        pytest.param(2, "fast", marks=pytest.mark.slow),
    ],
)
def test_backward_node_failure(world, victim, mode):
    """A worker of a chain dies in the middle of its backward: all others continue."""
    chain = [f"worker{rank}" for rank in (1, 2, 3) if rank != victim] + [f"worker{victim}"]
    gm.rpc_sync(chain[-1], f.set_in_backward, ("die",))

    with gm.autograd.context() as ctx:
        y = gm.rpc_sync(chain[0], f.hooked_chain, (leaf(), chain[1:])).sum()
        begun = time.monotonic()
        with pytest.raises(WorkerLost, match=f"worker{victim}") as caught:
            gm.autograd.backward(ctx, [y], timeout_s=60, mode=mode)
        took_s = time.monotonic() - begun
        print(f"noticed after {took_s:.2f} s")
        left = ctx.gradients()

    assert caught.value.metadata["worker"] == f"worker{victim}"
    assert took_s < 30  # the deadline is 60 s; 2 s on a quiet machine
    assert left == {}
    others = [name for name in chain if name != f"worker{victim}"]
    world.wait_until(
        lambda: all(gm.rpc_sync(name, f.counters)["num_autograd_contexts"] == 0 for name in others),
        20,
    )
    assert gm.rpc_sync(others[0], f.train_here, (others[1], 3)) == 3
    assert gm.rpc_sync(others[1], f.train_here, ("worker0", 3)) == 3
    assert f.train_here(others[0], 3) == 3


@pytest.mark.slow
def test_a_worker_that_was_gone_before_the_backward(world):
    x = leaf()
    with gm.autograd.context() as ctx:
        y = gm.rpc_sync("worker1", f.hooked_chain, (x, ["worker2"])).sum()
        world.children[2].kill()
        world.children[2].wait(120)
        begun = time.monotonic()
        with pytest.raises(WorkerLost, match="worker2"):
            gm.autograd.backward(ctx, [y], timeout_s=60)
        assert time.monotonic() - begun < 30  # the deadline is 60 s

    assert gm.rpc_sync("worker1", f.train_here, ("worker3", 2)) == 2


@pytest.mark.slow
def test_contexts_of_a_dead_worker_are_collected(world):
    """Contexts that a worker opened on others are released with its lease."""
    gm.rpc_sync("worker1", f.set_in_backward, ("die",))
    with pytest.raises(MeshError):
        gm.rpc_sync("worker1", f.open_and_die, ("worker2",))
    world.children[1].wait(120)

    assert gm.rpc_sync("worker2", f.count_contexts) == 1
    world.wait_until(lambda: gm.rpc_sync("worker2", f.count_contexts) == 0, 60)


@pytest.mark.slow
def test_a_stopped_worker_ends_the_pass_by_its_deadline(world):
    """A stopped worker keeps its connections: the deadline ends the pass."""
    x = leaf()
    with gm.autograd.context() as ctx:
        y = gm.rpc_sync("worker1", f.hooked_chain, (x, ["worker2"])).sum()
        os.kill(world.children[2].pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises((DeadlineExceeded, WorkerLost)):
                gm.autograd.backward(ctx, [y], timeout_s=3)
            assert time.monotonic() - begun < 30
        finally:
            os.kill(world.children[2].pid, signal.SIGCONT)

    def trains_again() -> bool:
        try:
            return f.train_here("worker2", 1) == 1
        except Unreachable:  # a connection attempt while the worker was stopped
            return False

    world.wait_until(trains_again, 20)


def test_killing_a_worker_of_many_passes_ends_all_of_them(world):
    """Every trainer whose backward a dead worker is part of gets a typed error, soon."""
    gm.rpc_sync("worker3", f.set_in_backward, ("sleep", 30.0))
    ends = []

    def train(first):
        try:
            with gm.autograd.context() as ctx:
                y = gm.rpc_sync(first, f.hooked_chain, (leaf(), ["worker3"])).sum()
                gm.autograd.backward(ctx, [y], timeout_s=60)
            ends.append("no error")
        except WorkerLost as error:
            ends.append(error.metadata["worker"])
        except BaseException as error:
            ends.append(repr(error))

    threads = [threading.Thread(target=train, args=(f"worker{1 + i % 2}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    world.wait_until(
        lambda: (
            sum(
                gm.rpc_sync(name, f.counters)["num_current_backward_passes"]
                for name in ("worker1", "worker2")
            )
            == 6
        ),
        30,
    )
    world.children[3].kill()
    begun = time.monotonic()
    for thread in threads:
        thread.join(40)

    assert ends == ["worker3"] * 6
    assert time.monotonic() - begun < 30  # the deadline is 60 s; 2 s on a quiet machine
    assert f.train_here("worker1", 2) == 2
