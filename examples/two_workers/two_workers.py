"""Two processes train parameters of each other: one context, one backward, one step.

Each creates two random tensors on its peer, sums copies of them, runs one backward over both
processes and steps the tensors on the peer. The gradient of a sum is 1 everywhere, so every element
decreases by the learning rate, 0.05.
"""

import multiprocessing

import numpy as np

import gradmesh as gm

NAMES = ("worker0", "worker1")
LR = 0.05


@gm.rpc.register(name="two_workers.random_tensor")
def random_tensor(seed):
    """Return a parameter."""
    values = np.random.default_rng(seed).random((3, 3), dtype=np.float32)
    return gm.tensor(values, requires_grad=True)


def work(rank, coordinator):
    """Run one of the two processes."""
    gm.rpc.init(NAMES[rank], coordinator=coordinator, rank=rank, world_size=2)
    peer = NAMES[1 - rank]
    with gm.autograd.context() as ctx:
        rrefs = [gm.remote(peer, random_tensor, (10 * rank + n,)) for n in (1, 2)]
        before = [rref.to_here() for rref in rrefs]  # copies, recorded as received from the peer
        loss = (before[0] + before[1]).sum()
        gm.autograd.backward(ctx, [loss])
        optimizer = gm.optim.DistributedOptimizer(gm.optim.SGD, rrefs, lr=LR)
        gm.step(ctx, optimizer)
    for old, rref in zip(before, rrefs, strict=True):
        assert (rref.to_here().data == old.data - np.float32(LR)).all()
    print(f"{NAMES[rank]}: both tensors on {peer} decreased by {LR} everywhere", flush=True)
    gm.rpc.shutdown()  # waits until the peer has finished its calls


def main():
    """Start a coordinator and both processes."""
    spawn = multiprocessing.get_context("spawn")
    with gm.LocalCluster(parameter_servers=1) as cluster:
        workers = [
            spawn.Process(target=work, args=(rank, cluster.address), daemon=True) for rank in (0, 1)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
    if any(worker.exitcode != 0 for worker in workers):
        raise SystemExit("a worker failed or did not end in time")


if __name__ == "__main__":
    main()
