"""The functions that the workers serve; imported by the workers and by the tests."""

import time
from typing import Any

import numpy as np

import gradmesh as gm


@gm.rpc.register
def add(a: Any, b: Any) -> Any:
    return a + b


@gm.rpc.register
def whoami() -> str:
    return gm.rpc.get_worker_info().name


@gm.rpc.register
def echo(value: Any = None) -> Any:
    return value


@gm.rpc.register
def kind_of(value: Any) -> str:
    return type(value).__name__


@gm.rpc.register
def nothing() -> None:
    pass


@gm.rpc.register
def heavy(x: Any) -> Any:
    for _ in range(20):
        x = x @ x / np.linalg.norm(x)
    return x


@gm.rpc.register
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@gm.rpc.register
def raise_value(text: str = "expected error") -> None:
    raise ValueError(text)


@gm.rpc.register
def raise_type() -> Any:
    return 1 + "x"  # type: ignore[operator]


@gm.rpc.register_exception
class Registered(Exception):
    pass


@gm.rpc.register_exception
class NeedsTwo(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


class Unregistered(Exception):
    pass


@gm.rpc.register
def raise_kind(kind: str) -> None:
    if kind == "registered":
        raise Registered("the text")
    if kind == "two":
        raise NeedsTwo("the", "text")
    if kind == "unregistered":
        raise Unregistered("the text")
    if kind == "key":
        raise KeyError("line one\nline two")
    if kind == "unicode":
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "the text")
    if kind == "stop":
        raise StopIteration
    raise SystemExit(3)


@gm.rpc.register
class Point:
    """A registered class with all kinds of methods."""

    def __init__(self, x: int) -> None:
        self.x = x

    def get(self) -> int:
        return self.x

    def move(self, by: int) -> int:
        self.x += by
        return self.x

    def slow(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.x

    def fail(self) -> None:
        raise ValueError("from a method")

    @gm.rpc.async_execution
    def later(self, by: int) -> Any:
        return gm.rpc_async(gm.rpc.get_worker_info().name, add, (self.x, by))

    @classmethod
    def of(cls, x: int) -> int:
        return cls(x).x

    @staticmethod
    def twice(x: int) -> int:
        return 2 * x

    @staticmethod
    @gm.rpc.async_execution
    def static_later(to: str, x: int) -> Any:
        return gm.rpc_async(to, add, (x, 1))

    @classmethod
    @gm.rpc.async_execution
    def class_later(cls, to: str, x: int) -> Any:
        return gm.rpc_async(to, add, (x, 1))

    def _hidden(self) -> int:
        return self.x


@gm.rpc.register
def slow_point(seconds: float) -> Point:
    time.sleep(seconds)
    return Point(7)


@gm.rpc.register
def nested_sum(to: str, back: str, depth: int) -> int:
    return 0 if depth == 0 else 1 + int(gm.rpc_sync(to, nested_sum, (back, to, depth - 1)))


@gm.rpc.register
def endless(to: str, back: str) -> None:
    gm.rpc_sync(to, endless, (back, to))


CHAIN: list[int] = []


@gm.rpc.register
def chain(workers: list[str], ttl: int) -> None:
    """Call the next worker without waiting for it."""
    CHAIN.append(ttl)
    if ttl:
        gm.rpc_async(workers[ttl % len(workers)], chain, (workers, ttl - 1))


@gm.rpc.register
def chain_seen() -> list[int]:
    return list(CHAIN)


# References


@gm.rpc.register
def fetch(rref: Any) -> Any:
    return rref.to_here()


@gm.rpc.register
def fetch_sum(a: Any, b: Any) -> Any:
    return a.to_here() + b.to_here()


@gm.rpc.register
def local_value(rref: Any) -> Any:
    return rref.local_value()


@gm.rpc.register
def describe(rref: Any) -> tuple[bool, bool, str]:
    return rref.confirmed_by_owner(), rref.is_owner(), rref.owner_name()


@gm.rpc.register
def confirmed_all(rrefs: Any) -> list[bool]:
    return [rref.confirmed_by_owner() for rref in rrefs["list"]]


@gm.rpc.register
def make_rref(value: Any) -> Any:
    return gm.RRef(value)


@gm.rpc.register
def make_remote(to: str, a: Any, b: Any) -> Any:
    return gm.remote(to, add, (a, b))


@gm.rpc.register
def make_list(to: str, count: int) -> list[Any]:
    return [gm.remote(to, add, (n, 1)) for n in range(count)]


@gm.rpc.register
def forward_chain(workers: list[str], rref: Any, ttl: int) -> Any:
    if ttl == 0:
        return rref.to_here()
    return gm.rpc_sync(workers[ttl % len(workers)], forward_chain, (workers, rref, ttl - 1))


HELD: dict[str, Any] = {}


@gm.rpc.register
def hold(name: str, value: Any) -> None:
    HELD[name] = value


@gm.rpc.register
def drop(name: str) -> None:
    HELD.pop(name, None)


@gm.rpc.register
def fetch_held(name: str) -> Any:
    return HELD[name].to_here()


@gm.rpc.register
def info() -> dict[str, int]:
    return gm.rpc.debug_info()


@gm.rpc.register
def owner_info(rref: Any) -> Any:
    return rref.owner()


# Remote modules


@gm.rpc.register
def run_module(module: Any, x: Any) -> Any:
    return module(x)


@gm.rpc.register
def run_held_module(name: str, x: Any) -> Any:
    return HELD[name](x)


@gm.rpc.register
def run_modules(modules: Any, x: Any) -> Any:
    for module in modules["list"]:
        x = module.forward_async(x).wait()
    return x


@gm.rpc.register
def forward_module(workers: list[str], module: Any, x: Any) -> Any:
    """Forward from worker to worker; the last one runs the module."""
    if not workers:
        return module(x)
    return gm.rpc_sync(workers[0], forward_module, (workers[1:], module, x))


@gm.rpc.register
def about_module(module: Any) -> dict[str, Any]:
    rref = module.get_module_rref()
    return {
        "parameters": [param.to_here() for param in module.remote_parameters()],
        "owner": rref.owner_name(),
        "is_owner": rref.is_owner(),
        "confirmed": rref.confirmed_by_owner(),
        "training": module.training,
        "text": repr(module),
        "here": gm.rpc.get_worker_info().name,
    }


@gm.rpc.register
def set_training(module: Any, mode: bool) -> Any:
    return module.train(mode)
