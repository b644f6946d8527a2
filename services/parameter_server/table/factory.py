"""Makes index and rows of a shard from the specification of its table."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from gradmesh.engine.kernels import bucket_index as kernel
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.sharding import BUCKETS
from gradmesh.sdk.table.spec import bucket_rows
from gradmesh.services.parameter_server.table.admission import make_admission
from gradmesh.services.parameter_server.table.hash import HashIndex, RowLimits
from gradmesh.services.parameter_server.table.index import DenseIndex, Index, OwnedBuckets
from gradmesh.services.parameter_server.table.memory import Account
from gradmesh.services.parameter_server.table.rows import Layout, MemoryRows, Rows
from gradmesh.services.parameter_server.table.stats import TableStats
from gradmesh.services.parameter_server.table.tier import WHERE_BYTES, TieredRows

_POLICIES = {"": kernel.KEEP, "lru": kernel.LRU, "lfu": kernel.LFU, "ttl": kernel.TTL}

# Address space of a hash table without a limit: more rows than fit into any machine.
_MOST_ROWS = 1 << 32


@final
@dataclass(frozen=True, slots=True)
class TableResources:
    """The resources of a server for one table.

    Args:
        account: Memory.
        ssd_path: Directory of slab files; None for none.
        max_ssd_bytes: Most bytes of them.
        stats: Counters of the table.
        seed: Seed of the table.
    """

    account: Account
    ssd_path: Path | None
    max_ssd_bytes: int
    stats: TableStats
    seed: int


def is_hash(spec: table_pb2.TableSpec) -> bool:
    """Return whether a table makes rows on first use."""
    return spec.kind == table_pb2.TABLE_KIND_HASH


def make_parts(
    spec: table_pb2.TableSpec, layout: Layout, owned: OwnedBuckets, resources: TableResources
) -> tuple[Index, Rows]:
    """Return index and rows of an empty table, with address space for its maximal size.

    Raises:
        StoreFull: It does not fit; nothing is reserved.
    """
    make = _make_hash if is_hash(spec) else _make_dense
    try:
        return make(spec, layout, owned, resources)
    except BaseException:
        resources.account.settle(0)
        raise


def _make_dense(
    spec: table_pb2.TableSpec, layout: Layout, owned: OwnedBuckets, resources: TableResources
) -> tuple[Index, Rows]:
    rows = -(-spec.rows * owned.count // BUCKETS)
    index_bytes = DenseIndex.estimate_bytes(spec.rows, owned)
    resources.account.take(
        rows * (WHERE_BYTES if spec.hot_bytes else layout.row_bytes) + index_bytes
    )
    index = DenseIndex(spec.name, spec.rows, owned)
    held = _make_rows(spec, layout, index.row_count, owned, resources)
    held.ensure(index.row_count)
    resources.account.settle(index.bytes + held.memory_bytes(index.row_count))
    return index, held


def _make_hash(
    spec: table_pb2.TableSpec, layout: Layout, owned: OwnedBuckets, resources: TableResources
) -> tuple[Index, Rows]:
    space = resources.max_ssd_bytes if spec.hot_bytes else resources.account.max_bytes
    capacity = min(space // layout.row_bytes, _MOST_ROWS - 2)
    quota = bucket_rows(spec.max_bytes, layout.row_bytes)
    if spec.max_bytes:
        capacity = min(capacity, quota * owned.count)
    capacity = max(1, capacity)
    rows = _make_rows(spec, layout, capacity, owned, resources)
    policy = _POLICIES[spec.eviction.name]
    limits = RowLimits(
        policy,
        int(spec.eviction.settings["steps"]) if policy == kernel.TTL else 0,
        quota,
        evicts=policy != kernel.KEEP and spec.max_bytes > 0,
    )
    index = HashIndex(
        spec.name,
        owned,
        row_bytes=WHERE_BYTES if spec.hot_bytes else layout.row_bytes,
        capacity=capacity,
        limits=limits,
        admission=make_admission(spec.admission, owned, resources.seed),
        account=resources.account,
        fixed_bytes=rows.memory_bytes(0),
        stats=resources.stats,
        ensure=rows.ensure,
    )
    return index, rows


def _make_rows(
    spec: table_pb2.TableSpec,
    layout: Layout,
    capacity: int,
    owned: OwnedBuckets,
    resources: TableResources,
) -> Rows:
    if not spec.hot_bytes:
        return MemoryRows(layout, capacity)
    if resources.ssd_path is None:
        raise InvalidRequest(
            f"table {spec.name!r} keeps {spec.hot_bytes} bytes in memory and the rest on disk, but "
            "this server has no parameter_server.ssd_path; set it",
            table=spec.name,
        )
    return TieredRows(
        layout,
        capacity,
        hot_bytes=spec.hot_bytes * owned.count // BUCKETS,
        directory=resources.ssd_path,
        max_file_bytes=resources.max_ssd_bytes,
    )
