"""Tables, shard maps and stores without a network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import TableNotFound
from gradmesh.protos.sharding import ShardMap, even_buckets
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.store import TableStore


class Make:
    """Builders."""

    @staticmethod
    def spec(
        name: str = "user", rows: int = 50, dim: int = 3, **fields: Any
    ) -> table_pb2.TableSpec:
        fields.setdefault("optimizer", table_pb2.Recipe(name="sgd", settings={"lr": 1.0}))
        fields.setdefault("initializer", table_pb2.Recipe(name="constant", settings={"value": 1.0}))
        fields.setdefault("dtype", "ELEMENT_TYPE_FLOAT32")
        return table_pb2.TableSpec(name=name, rows=rows, dim=dim, **fields)

    @staticmethod
    def shards(count: int = 1, epoch: int = 1) -> ShardMap:
        names = [f"ps-{i}" for i in range(count)]
        return ShardMap(epoch, names, names, np.array(even_buckets(count), np.int32))

    @staticmethod
    def context(counter: int = 1, incarnation: int = 1, worker: str = "w") -> context_pb2.ContextId:
        return context_pb2.ContextId(worker=worker, incarnation=incarnation, counter=counter)

    @staticmethod
    def mark(step: int, rank: int = 0, generation: int = 1) -> context_pb2.StepMark:
        return context_pb2.StepMark(generation=generation, step=step, rank=rank)

    @staticmethod
    def deadline(timeout_s: float = 5.0) -> Deadline:
        return Deadline.after(timeout_s)

    @staticmethod
    def store(*specs: table_pb2.TableSpec, **options: Any) -> TableStore:
        known = {spec.name: spec for spec in specs or (Make.spec(),)}

        def describe(name: str, deadline: Deadline) -> table_pb2.TableSpec:
            if name not in known:
                raise TableNotFound(f"no table {name!r}")
            return known[name]

        options.setdefault("max_bytes", 1 << 20)
        options.setdefault("max_waiters", 4)
        shards = options.pop("shards", Make.shards())
        return TableStore("ps-0", describe, lambda epoch, deadline: shards, **options)


@pytest.fixture
def make() -> type[Make]:
    return Make


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Callable[[], float]:
    return Clock()
