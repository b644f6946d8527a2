"""Ten thousand contexts leave nothing behind, on no worker."""

import gc

import pytest

import gradmesh as gm
from tests.integration.dist_autograd import functions as f

pytestmark = [pytest.mark.xdist_group("dist_autograd")]


def footprint(world):
    gc.collect()
    threads = [gm.rpc_sync(f"worker{rank}", f.thread_count) for rank in range(world.size)]
    memory = [gm.rpc_sync(f"worker{rank}", f.memory) for rank in range(world.size)]
    return threads, memory


def run(count):
    for number in range(count):
        x = f.tensor(8, 8)
        with gm.autograd.context() as ctx:
            if number % 4 == 0:
                y = gm.rpc_sync("worker1", f.matmul_chain, (x, ["worker2", "worker3"]))
            elif number % 4 == 1:
                y = gm.rpc.remote("worker2", f.mul, (x, x)).to_here()
            else:
                y = gm.rpc_sync("worker3", f.mul, (x, x))
            if number % 10:
                gm.autograd.backward(ctx, [y.sum()])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_contexts_leak_nothing(world, count):
    run(300)
    world.wait_clean()
    threads, memory = footprint(world)

    run(count)
    world.wait_clean(30)
    world.wait_until(lambda: footprint(world)[0] <= [t + 2 for t in threads], 30)
    after = footprint(world)[1]
    info = gm.rpc.debug_info()

    assert (info["num_owner_rrefs"], info["num_autograd_contexts"]) == (0, 0)
    # Allocators keep some memory; a leaked context takes kilobytes.
    assert all(now - then < 20 * 2**20 for now, then in zip(after, memory, strict=True))
