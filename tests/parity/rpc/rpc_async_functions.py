"""Asynchronous functions, collectives and a parameter server; as rpc_functions."""

import threading
from typing import Any

import numpy as np
from rpc_functions import HELD, add

import gradmesh as gm
from gradmesh.engine.autograd.row_grad import RowGrad, add_grads


@gm.rpc.register
@gm.rpc.async_execution
def add_later(to: str, x: Any, y: Any) -> Any:
    return gm.rpc_async(to, add, (x, y))


@gm.rpc.register
@gm.rpc.async_execution
def add_chained(to: str, x: Any, y: Any, z: Any) -> Any:
    return gm.rpc_async(to, add, (x, y)).then(lambda done: done.wait() + z)


@gm.rpc.register
@gm.rpc.async_execution
def add_nested(to: str, x: Any, y: Any, z: Any) -> Any:
    return gm.rpc_async(to, add_later, (to, x, y)).then(lambda done: done.wait() + z)


@gm.rpc.register
@gm.rpc.async_execution
def add_multi_chained(to: str, x: int, count: int, step: int) -> Any:
    future = gm.rpc_async(to, add, (x, 0))
    for _ in range(count):
        future = future.then(lambda done: done.wait() + step)
    return future


@gm.rpc.register
@gm.rpc.async_execution
def add_multi_fanout(to: str, x: int, count: int, step: int) -> Any:
    futures = [gm.rpc_async(to, add, (0, step)) for _ in range(count)]
    return gm.futures.collect_all(futures).then(
        lambda done: x + sum(future.wait() for future in done.wait())
    )


@gm.rpc.register
@gm.rpc.async_execution
def own_future(seconds: float, value: Any) -> Any:
    future: gm.Future[Any] = gm.Future()
    timer = threading.Timer(seconds, future.set_result, (value,))
    timer.daemon = True
    timer.start()
    return future


@gm.rpc.register
@gm.rpc.async_execution
def raise_later() -> Any:
    raise RuntimeError("expected error")


@gm.rpc.register
@gm.rpc.async_execution
def fail_later() -> Any:
    future: gm.Future[Any] = gm.Future()
    future.set_exception(ValueError("expected error"))
    return future


@gm.rpc.register
@gm.rpc.async_execution
def not_a_future() -> int:
    return 3


@gm.rpc.register
def return_future() -> Any:
    return gm.rpc_async(gm.rpc.get_worker_info().name, add, (1, 1))


@gm.rpc.register
def callback_in_call(to: str, n: int) -> int:
    return int(gm.rpc_async(to, add, (n, n)).then(lambda done: done.wait() + 1).wait())


@gm.rpc.register
@gm.rpc.async_execution
def never() -> Any:
    HELD["never"] = future = gm.Future[Any]()
    return future


_unreleased: list[tuple[gm.Future[Any], Any]] = []


@gm.rpc.register
@gm.rpc.async_execution
def on_release(value: Any) -> Any:
    """Return the value when `release` is called."""
    future: gm.Future[Any] = gm.Future()
    _unreleased.append((future, value))
    return future


@gm.rpc.register
def release() -> None:
    while _unreleased:
        future, value = _unreleased.pop()
        future.set_result(value)


# Collectives


@gm.rpc.register
def meet(value: Any, workers: list[str], timeout_s: float | None = None) -> dict[str, Any]:
    return gm.rpc.all_gather(value, workers, timeout_s)


COUNTS: dict[str, int] = {}
_counts_lock = threading.Lock()


@gm.rpc.register
def count(name: str) -> int:
    with _counts_lock:
        COUNTS[name] = COUNTS.get(name, 0) + 1
        return COUNTS[name]


@gm.rpc.register
def count_then_meet(leader: str, name: str, workers: list[str]) -> int:
    """Count on the leader, wait at a barrier, and return the total."""
    gm.rpc_sync(leader, count, (name,))
    gm.rpc.barrier(workers)
    return int(gm.rpc_sync(leader, counted, (name,)))


@gm.rpc.register
def counted(name: str) -> int:
    return COUNTS.get(name, 0)


@gm.rpc.register
def meet_in_threads(workers: list[str], threads: int) -> int:
    met: list[int] = []

    def one() -> None:
        gm.rpc.barrier(workers)
        met.append(1)

    agent = gm.rpc.get_worker_info()
    assert agent.name in workers
    running = [threading.Thread(target=one) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(30)
    return len(met)


# A parameter server written with asynchronous functions


@gm.rpc.register
class Averager:
    """Returns the mean of all contributions to every trainer."""

    def __init__(self, trainers: int) -> None:
        self.trainers = trainers
        self.lock = threading.Lock()
        self.sum: Any = None
        self.mean: Any = None
        self.count = 0
        self.future: gm.Future[Any] = gm.Future()

    @gm.rpc.async_execution
    def report(self, gradient: Any) -> Any:
        with self.lock:
            self.sum = gradient if self.sum is None else add_grads(self.sum, gradient)
            self.count += 1
            future = self.future
            if self.count == self.trainers:
                self.mean = _divided(self.sum, self.trainers)
                self.sum, self.count, self.future = None, 0, gm.Future()
                future.set_result(self.mean)
        return future

    def current(self) -> Any:
        return self.mean


def _divided(total: Any, count: int) -> Any:
    if isinstance(total, RowGrad):
        return RowGrad(total.ids, total.rows / count, total.num_rows, total.coalesced)
    return total / count


@gm.rpc.register
def train(server: Any, iterations: int, seed: int, sparse: bool) -> bool:
    rng = np.random.default_rng(seed)
    for _ in range(iterations):
        gradient: Any = rng.normal(size=(3, 3)).astype(np.float32)
        if sparse:
            gradient = RowGrad(rng.integers(0, 9, 3), gradient, 9)
        mean, current = server.rpc_sync().report(gradient), server.rpc_sync().current()
        if sparse:
            mean, current = mean.to_dense(), current.to_dense()
        if not np.array_equal(mean, current):
            return False
        gm.rpc.barrier(["worker-0", "worker-1", "worker-2"])
    return True
