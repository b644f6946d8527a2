"""Shards of one table, without any server around them."""

from collections.abc import Callable

import numpy as np
import pytest

from gradmesh.engine.optim import SGD, Optimizer
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import wire_dtype
from gradmesh.protos.sharding import ShardMap, even_buckets
from gradmesh.sdk.table.recipe import Initializer, to_recipe
from gradmesh.sdk.table.schedule import schedule_recipe
from gradmesh.services.parameter_server.table import TableShard


class Shards:
    """A table on M servers; each id is looked up on its owner, as by a client."""

    def __init__(self, spec: table_pb2.TableSpec, count: int, **home) -> None:
        self.spec = spec
        names = [f"parameter-server-{i}" for i in range(count)]
        self.map = ShardMap(1, names, names, np.array(even_buckets(count), np.int32))
        self.shards = [TableShard(spec, self.map, i, **home) for i in range(count)]

    def read(self, ids, **kwargs) -> np.ndarray:
        ids = np.asarray(ids, np.int64)
        out = None
        for shard, mine in self._split(ids):
            rows = shard.read(shard.slots_of(ids[mine]), **kwargs)
            out = np.empty((ids.size, rows.shape[1]), rows.dtype) if out is None else out
            out[mine] = rows
        return out

    def push(self, ids, grads, step=None) -> None:
        ids = np.asarray(ids, np.int64)
        for shard, mine in self._split(ids):
            handles = shard.slots_of(ids[mine])
            shard.prepare(handles)
            shard.apply(handles, shard.check_grads(handles, grads[mine]), step)

    def rows(self) -> dict[int, bytes]:
        found = {}
        for shard in self.shards:
            for ids, rows, state in shard.blocks():
                for i, id_ in enumerate(ids.tolist()):
                    assert id_ not in found
                    found[id_] = b"".join(
                        [rows[i].tobytes(), *(s[i].tobytes() for s in state.values())]
                    )
        return found

    def _split(self, ids):
        owners = self.map.shards_of(ids)
        return [(shard, np.flatnonzero(owners == i)) for i, shard in enumerate(self.shards)]


def build_shards(
    count: int = 1,
    *,
    rows: int | None = None,
    dim: int = 4,
    optimizer: Optimizer | None = None,
    initializer: Initializer | None = None,
    schedule=None,
    dtype=np.float32,
    home=None,
    **fields,
) -> Shards:
    spec = table_pb2.TableSpec(
        name="user",
        kind=table_pb2.TABLE_KIND_HASH if rows is None else None,
        rows=rows,
        dim=dim,
        dtype=wire_dtype(np.dtype(dtype)),
        seed=7,
        initializer=to_recipe(initializer or Initializer.uniform(0.5)),
        optimizer=to_recipe(optimizer or SGD(lr=1.0)),
        schedule=schedule_recipe(schedule),
        **fields,
    )
    return Shards(spec, count, **(home or {}))


@pytest.fixture
def make_shards() -> Callable[..., Shards]:
    """Make a table: make_shards(count=1, rows=None, dim=4, optimizer=SGD(1.0), ...)."""
    return build_shards
