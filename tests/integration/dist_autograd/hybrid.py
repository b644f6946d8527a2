"""The hybrid model of upstream's ddp_under_dist_autograd_test, as functions of its processes."""

import time
from typing import Any

import numpy as np

import gradmesh as gm
from gradmesh.engine.autograd.ops import cat
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.process_group import TcpProcessGroup

TRAINERS = [f"worker{rank}" for rank in range(1, 5)]
REMOTE = "worker5"

_here: dict[str, Any] = {}


@gm.rpc.register
def put_key(key: str, value: bytes) -> None:
    _here.setdefault("keys", {})[key] = value


@gm.rpc.register
def get_key(key: str) -> bytes | None:
    found: bytes | None = _here.setdefault("keys", {}).get(key)
    return found


class _Store:
    """Key-value store on the master."""

    def set(self, key: str, value: bytes) -> None:
        gm.rpc_sync("worker0", put_key, (key, value))

    def get(self, key: str, timeout_s: float) -> bytes:
        until = time.monotonic() + timeout_s
        while (found := gm.rpc_sync("worker0", get_key, (key,))) is None:
            if time.monotonic() > until:
                raise TimeoutError(key)
        return found


def _linear(inputs: int, outputs: int) -> gm.nn.Linear:
    layer = gm.nn.Linear(inputs, outputs, bias=False)
    layer.weight.data[...] = 1.0
    layer.weight.data[0, 0] = -1.0
    return layer


@gm.rpc.register
def make_remote_parts() -> None:
    em = gm.nn.EmbeddingBag(2, 3, mode="mean")
    em.weight.data[...] = 0.5
    _here.update(em=em, net=_linear(5, 3))


@gm.rpc.register
def embed(ids: Any) -> Any:
    return _here["em"](gm.tensor(ids), gm.tensor(np.arange(len(ids))))


@gm.rpc.register
def net(x: Any) -> Any:
    return gm.nn.functional.relu(_here["net"](x))


class Hybrid(gm.nn.Module):
    """Dense features here, sparse ones and the net on the remote worker."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = _linear(2, 2)
        self.fc2: Any = _linear(3, 1)

    def forward(self, dense: Any, sparse: Any) -> Any:
        rows = gm.rpc_sync(REMOTE, embed, (sparse,))
        joined = cat([self.fc1(dense), rows], 1)
        return self.fc2(gm.rpc_sync(REMOTE, net, (joined,)))


def examples(trainer: int) -> tuple[Any, Any, Any]:
    """Return this trainer's 4 of the 16 examples."""
    rows = [((x, y), z, v) for v in (-1.0, 1.0) for x in (-v, v) for y in (v, -v) for z in (0, 1)][
        4 * trainer : 4 * trainer + 4
    ]
    dense = np.array([row[0] for row in rows], np.float32)
    sparse = np.array([row[1] for row in rows])
    return dense, sparse, np.array([row[2] for row in rows], np.float32)


@gm.rpc.register
def join_group(rank: int, generation: int) -> None:
    _here["group"] = TcpProcessGroup.connect(
        _Store(), generation=generation, rank=rank, world_size=4, timeout_s=60
    )


@gm.rpc.register
def train(rank: int, mode: str, uneven: bool) -> list[Any]:
    """Run one round; return the gradients of fc1 and fc2 from the context."""
    model: Any = Hybrid()
    plain = model
    if mode == "inside":
        model.fc2 = DistributedDataParallel(model.fc2, process_group=_here["group"])
    if mode == "outside":
        model = DistributedDataParallel(model, process_group=_here["group"])
    dense, sparse, values = examples(rank)
    batches = [slice(0, 4)] if not uneven else [slice(0, 2), slice(2, 4)][: 1 if rank < 2 else 2]

    def run() -> list[Any]:
        grads: list[Any] = []
        for rows in batches:
            with gm.autograd.context() as ctx:
                out = model(gm.tensor(dense[rows]), sparse[rows])
                gm.autograd.backward(ctx, [(out * gm.tensor(values)).sum()])
                found = ctx.gradients()
                last = plain.fc2.module if mode == "inside" else plain.fc2
                grads = [np.array(found[plain.fc1.weight]), np.array(found[last.weight])]
        return grads

    if uneven:
        with model.join():
            return run()
    return run()


@gm.rpc.register
def compare(rank: int, counts: list[int], divide_by_initial: bool) -> bool:
    """Run each input in a context and locally; return whether gradients agree."""
    model = gm.nn.Linear(2, 3)
    model.weight.data[...] = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    model.bias.data[...] = 0.1
    ddp = DistributedDataParallel(model, process_group=_here["group"])
    rng = np.random.default_rng(rank)
    with ddp.join(divide_by_initial_world_size=divide_by_initial):
        for _ in range(counts[rank]):
            x = gm.tensor(rng.random((3, 2)).astype(np.float32))
            with gm.autograd.context() as ctx:
                gm.autograd.backward(ctx, [ddp(x).norm()])
                found = {p: np.array(g) for p, g in ctx.gradients().items()}
            for param in model.parameters():
                param.grad = None
            ddp(x).norm().backward()
            for param in model.parameters():
                np.testing.assert_allclose(found[param], param.grad.data, rtol=1e-5, atol=1e-6)
    return True


@gm.rpc.register
def compare_sparse(rank: int) -> bool:
    """Run one batch of a sparse bag locally, then in a context; return whether gradients agree."""
    bag = gm.nn.EmbeddingBag(10, 3, mode="mean", sparse=True)
    ddp = DistributedDataParallel(bag, process_group=_here["group"])
    ids = gm.tensor(np.random.default_rng(rank).integers(0, 10, 10))
    offsets = gm.tensor(np.array([0, 4]))
    ddp(ids, offsets).sum().backward()
    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [ddp(ids, offsets).sum()])
        found = ctx.gradients()
    assert len(found) == 1
    grad = found[bag.weight]
    assert isinstance(grad, gm.autograd.RowGrad)
    np.testing.assert_allclose(grad.to_dense(), bag.weight.grad.to_dense(), rtol=1e-6, atol=1e-7)
    return True


@gm.rpc.register
def gradient_of(rref: Any) -> Any:
    """Return the gradient of a parameter of this worker in the caller's context."""
    return gm.autograd.get_gradients(gm.autograd.current_context())[rref.local_value()]


@gm.rpc.register
def compare_remote(rank: int, place: str) -> bool:
    """Run a layer of the remote worker and one under DDP, and the same locally."""
    remote = gm.nn.RemoteModule(place, gm.nn.Linear, (10, 5), {"bias": False})
    (weight,) = remote.remote_parameters()
    local = gm.nn.Linear(10, 5, bias=False)
    local.weight.data[...] = weight.to_here().data
    ddp = DistributedDataParallel(gm.nn.Linear(5, 1), process_group=_here["group"])
    x = gm.tensor(np.random.default_rng(rank).random((2, 10)).astype(np.float32))
    ddp(local(x)).norm().backward()
    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [ddp(remote(x)).norm()])
        mine = ctx.gradients()
        there = gm.rpc_sync(weight.owner_name(), gradient_of, (weight,))
    np.testing.assert_allclose(there, local.weight.grad.data, rtol=1e-5, atol=1e-6)
    for param in ddp.module.parameters():
        np.testing.assert_allclose(mine[param], param.grad.data, rtol=1e-5, atol=1e-6)
    return True


@gm.rpc.register
def close_group() -> None:
    _here.pop("group").close()
