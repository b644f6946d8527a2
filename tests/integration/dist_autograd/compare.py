"""The same maths, called locally and on another worker."""

import numpy as np

import gradmesh as gm
from gradmesh.engine.autograd import run_backward


def call(kind, target, function, *args):
    if kind == "local":
        return function(*args)
    if kind == "sync":
        return gm.rpc_sync(target, function, args)
    if kind == "async":
        return gm.rpc_async(target, function, args).result()
    return gm.rpc.remote(target, function, args).to_here()


def local_gradients(loss):
    into = {}
    run_backward([loss], into=into)
    return into


def check_same(make_loss, leaves, mode="smart", kinds=("sync", "async", "remote"), to="worker1"):
    """Compare gradients of a loss that calls functions locally and on another worker."""
    expected = local_gradients(make_loss("local", to))
    for kind in kinds:
        with gm.autograd.context() as ctx:
            gm.autograd.backward(ctx, [make_loss(kind, to)], mode=mode)
            found = gm.autograd.get_gradients(ctx)
            assert found.keys() >= expected.keys()
            if mode == "smart":
                assert found.keys() == expected.keys()
            for leaf in leaves:
                np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-5, atol=1e-6)
