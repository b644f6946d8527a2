"""The functions that the workers of the tests serve."""

import gc
import os
import threading
import time
from typing import Any

import numpy as np

import gradmesh as gm
from gradmesh.sdk.autograd.registry import CONTEXTS
from tests.footprint import footprint as footprint

rank = -1
kept: dict[str, Any] = {}


def tensor(*shape: int, value: float | None = None, dtype: Any = np.float32) -> gm.Tensor:
    data = np.full(shape, value, dtype) if value is not None else np.random.rand(*shape)
    return gm.tensor(data.astype(dtype), requires_grad=True)


@gm.rpc.register
def count_contexts() -> int:
    return CONTEXTS.open_count()


@gm.rpc.register
def counters() -> dict[str, int]:
    return dict(CONTEXTS.counters())


@gm.rpc.register
def thread_count() -> int:
    return threading.active_count()


@gm.rpc.register
def die() -> None:
    os._exit(9)


@gm.rpc.register
def add(x: Any, y: Any) -> Any:
    return x + y


@gm.rpc.register
def mul(x: Any, y: Any) -> Any:
    return x * y


@gm.rpc.register
def identity(x: Any) -> Any:
    return x


@gm.rpc.register
def add_ref(rref: gm.RRef[Any], x: Any) -> Any:
    return rref.to_here() + x


@gm.rpc.register
def add_ref_elsewhere(worker: str, rref: gm.RRef[Any], x: Any) -> Any:
    return gm.rpc_sync(worker, add_ref, (rref, x))


@gm.rpc.register
def gradient_of_ref(rref: gm.RRef[Any]) -> Any:
    """Return the gradient of a value of this worker in the caller's context."""
    return gm.autograd.get_gradients(gm.autograd.current_context())[rref.local_value()]


@gm.rpc.register
def first_of(x: Any, y: Any) -> Any:
    return x * 2


@gm.rpc.register
def slow_add(x: Any, y: Any, seconds: float = 1.0) -> Any:
    threading.Event().wait(seconds)
    with gm.no_grad():
        assert gm.autograd.current_context() is not None
    return x + y


@gm.rpc.register
def later(seconds: float) -> None:
    threading.Event().wait(seconds)


@gm.rpc.register
def matmul_chain(x: Any, names: list[str]) -> Any:
    """Go from worker to worker, and back."""
    if names:
        return gm.rpc_sync(names[0], matmul_chain, (x * 2, names[1:])) * x
    return x * x


@gm.rpc.register
def complex_args(tensors: list[Any]) -> Any:
    total = tensors[0]
    for one in tensors[1:]:
        total = total + one
    return total


@gm.rpc.register
def both(x: Any, y: Any) -> Any:
    return x + y, x * y, x - y


@gm.rpc.register
def split_chunks(x: Any, parts: int) -> Any:
    return tuple(x.chunk(parts))


@gm.rpc.register
def shape_error(x: Any) -> Any:
    return x @ gm.tensor(np.ones((7, 7), np.float32))


@gm.rpc.register
def make_kept(name: str, value: Any) -> Any:
    kept[name] = gm.tensor(np.asarray(value, np.float32), requires_grad=True)
    return kept[name]


@gm.rpc.register
def add_kept(name: str, x: Any) -> Any:
    return x + kept[name]


@gm.rpc.register
def mul_kept(name: str, x: Any) -> Any:
    return x * kept[name]


@gm.rpc.register
def kept_gradient(name: str) -> Any:
    """Return the gradient of a kept tensor in the caller's context."""
    grad = gm.autograd.get_gradients(gm.autograd.current_context()).get(kept[name])
    if grad is None:
        return None
    return grad.to_dense() if hasattr(grad, "to_dense") else grad


@gm.rpc.register
def kept_is_untouched(name: str) -> bool:
    return kept[name].grad is None


@gm.rpc.register
def step_kept(name: str, lr: float) -> None:
    """Step a kept parameter, copy-on-write, by its gradient in the caller's context."""
    param = kept[name]
    grad = gm.autograd.get_gradients(gm.autograd.current_context())[param]
    gm.autograd.renew([param])
    param.data -= np.float32(lr) * grad


@gm.rpc.register
def fetch_kept(name: str) -> Any:
    return kept[name].data.copy()


@gm.rpc.register
def graph_here() -> dict[str, Any]:
    """Describe this worker's messages of the caller's context."""
    ctx = gm.autograd.current_context()
    assert ctx is not None
    return {
        "sends": {
            str(count): [type(t).__name__ if t.is_node else "leaf" for t in sent.entry.targets]
            for count, sent in ctx.messages.sent.items()
        },
        "recvs": len(ctx.messages.received),
        "peers": sorted(ctx.messages.known_by - {f"worker{rank}"}),
    }


class _Fails(gm.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.copy()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if kept.get("failing", True):
            raise ValueError("simulated error in backward")
        return grad


class _Hooked(gm.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.copy()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        action = kept.get("in_backward")
        if action == "die":
            os._exit(9)
        if action == "release":
            found = gm.autograd.current_context()
            assert found is not None
            CONTEXTS.release(found.id)
        if action == "sleep":
            threading.Event().wait(kept.get("seconds", 1.0))
        return grad


@gm.rpc.register
def set_failing(failing: bool) -> None:
    kept["failing"] = failing


@gm.rpc.register
def set_in_backward(action: str | None, seconds: float = 0.0) -> None:
    kept["in_backward"] = action
    kept["seconds"] = seconds


@gm.rpc.register
def failing_chain(x: Any, names: list[str]) -> Any:
    if names:
        return gm.rpc_sync(names[0], failing_chain, (x * 2, names[1:])) * 3
    return _Fails.apply(x * 1)


@gm.rpc.register
def hooked_chain(x: Any, names: list[str]) -> Any:
    """Call along workers; the last one runs its configured action in its backward."""
    if names:
        return gm.rpc_sync(names[0], hooked_chain, (x * 2, names[1:])) * 3
    return _Hooked.apply(x * 1)


@gm.rpc.register
def embedding_bag(name: str, ids: Any, offsets: Any, weights: Any) -> Any:
    bag = kept[name]
    return bag(gm.tensor(ids), gm.tensor(offsets), per_sample_weights=weights)


@gm.rpc.register
def make_bag(name: str, rows: int, dim: int) -> None:
    bag = gm.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
    bag.weight.data[...] = np.arange(rows * dim, dtype=np.float32).reshape(rows, dim) / 100
    kept[name] = bag


@gm.rpc.register
def bag_gradient(name: str) -> Any:
    return gm.autograd.get_gradients(gm.autograd.current_context())[kept[name].weight]


@gm.rpc.register
def train_here(target: str, rounds: int) -> int:
    """Open contexts on this worker and run backwards through another one."""
    done = 0
    for _ in range(rounds):
        x, y = tensor(3, 3), tensor(3, 3)
        with gm.autograd.context() as ctx:
            z = gm.rpc_sync(target, add, (x, y))
            gm.autograd.backward(ctx, [(z * x).sum()])
            grads = gm.autograd.get_gradients(ctx)
            np.testing.assert_allclose(grads[x], 2 * x.data + y.data, rtol=1e-5)
            np.testing.assert_allclose(grads[y], x.data, rtol=1e-5)
            done += 1
    return done


@gm.rpc.register
def hammer(targets: list[str], threads: int, rounds: int) -> int:
    """Run many contexts at once on this worker."""
    counts: list[int] = []
    workers = [
        threading.Thread(target=lambda t=t: counts.append(train_here(t, rounds)))
        for t in targets
        for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    return sum(counts)


@gm.rpc.register
def train_owner(owner: str, name: str, steps: int, pause_s: float) -> list[float]:
    """Train a parameter of another worker; wait between forward and backward."""
    losses = []
    for _ in range(steps):
        x = gm.tensor(np.ones(4, np.float32) * (rank + 1), requires_grad=True)
        with gm.autograd.context() as ctx:
            y = gm.rpc_sync(owner, mul_kept, (name, x))
            loss = (y * y).sum()
            time.sleep(pause_s)
            gm.autograd.backward(ctx, [loss])
            gm.rpc_sync(owner, step_kept, (name, 0.001))
            # d(loss)/dx of the values that this forward read, not later changes of others.
            seen = np.sqrt(gm.autograd.get_gradients(ctx)[x] / (2 * x.data))
            np.testing.assert_allclose(np.abs(y.data / x.data), seen, rtol=1e-5)
            losses.append(float(loss.item()))
    return losses


@gm.rpc.register
def open_and_die(target: str) -> None:
    """Open a context on another worker, and die without leaving."""
    with gm.autograd.context():
        gm.rpc_sync(target, mul, (tensor(3), tensor(3)))
        os._exit(9)


@gm.rpc.register
def memory() -> int:
    """Return the bytes that this worker holds in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@gm.rpc.register
class Layer:
    """A matrix that multiplies, and an unused one."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.w = gm.tensor(rng.standard_normal((3, 3)).astype(np.float32), requires_grad=True)
        self.idle = gm.tensor(np.ones((2, 3), np.float32), requires_grad=True)

    def forward(self, x: Any) -> Any:
        return self.w @ x

    def get_w(self) -> gm.RRef[Any]:
        return gm.RRef(self.w)

    def get_idle(self) -> gm.RRef[Any]:
        return gm.RRef(self.idle)


@gm.rpc.register
class FailingOptimizer(gm.optim.SGD):
    """An optimizer that fails on the given workers."""

    def __init__(self, params: Any, lr: float, on: list[int] | None = None) -> None:
        super().__init__(params, lr)
        self.on = on

    def step(self, grads: Any = None) -> None:
        if self.on is None or rank in self.on:
            raise ValueError(f"error running optimizer on {rank}")
        super().step(grads)


@gm.rpc.register
class OptimizerFailingOnConstructor(gm.optim.SGD):
    def __init__(self, params: Any) -> None:
        raise ValueError("error creating optimizer")
