"""TableReader: a read-only client of tables for serving, which survives restarts of the cluster.

It is not a member of the mesh: it has no lease, and no other process waits for it. While the
parameter servers keep their addresses it does not need the coordinator.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self, final

import numpy as np
from prometheus_client import CollectorRegistry

from gradmesh.base_error import GradmeshError
from gradmesh.engine.kernels import gather, unique_inverse
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.cluster.coordinator import FailoverCoordinator
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.process.local_token import with_local_token
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.serving.cache import RowCache
from gradmesh.sdk.table.lookup import look_up, start_lookup
from gradmesh.sdk.table.metrics import ClientMetrics
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.table_set import TableSet, WantedIds, as_ids
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import Limits, RetryPolicy, Timeouts


def is_series(ids: Any) -> bool:
    """Return whether ids are a pandas Series, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(ids, pandas.Series)


def is_frame(ids: Any) -> bool:
    """Return whether ids are a pandas DataFrame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(ids, pandas.DataFrame)


def like_ids(rows: Array, ids: Any, table: str) -> Any:
    """Return rows as they are; for a Series as a DataFrame with its index.

    Columns are named "<table>.0", "<table>.1" and so on.
    """
    if not is_series(ids):
        return rows
    columns = [f"{table}.{element}" for element in range(rows.shape[-1])]
    return sys.modules["pandas"].DataFrame(rows, index=ids.index, columns=columns)


def side_by_side(frames: list[Any]) -> Any:
    """Return DataFrames of one index as one."""
    return sys.modules["pandas"].concat(frames, axis=1)


# A reader serves requests of its own: it gives up sooner than a trainer.
_LOOKUP_S = 10.0


class ReadOnly(PermissionError, GradmeshError):
    """A reader cannot change rows; connect with `gm.connect` to do that."""


@final
class TableReader:
    """A read-only client of tables, for serving; thread-safe, and a context manager.

    Args:
        coordinator: Address of the coordinator, "host:port", or several alternative ones.
        cache_rows: Rows of each table to cache, the recently used ones; 0 for no cache.
        max_age_s: Seconds after which a cached row expires.
        security: Certificates and token.
        timeouts: Deadlines of calls that set none; without it a lookup has ten seconds.
        retry: Pauses between attempts of a call.
        limits: Size of messages.
        registry: Exports the metrics of calls and lookups until `close`; None for nowhere.

    Raises:
        InvalidRequest: There is no address, or a number of the cache is wrong.
    """

    def __init__(
        self,
        coordinator: str | Sequence[str],
        *,
        cache_rows: int = 0,
        max_age_s: float = 1.0,
        security: SecurityConfig | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        limits: Limits | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        addresses = [coordinator] if isinstance(coordinator, str) else list(coordinator)
        if not addresses:
            raise InvalidRequest("a reader needs the address of a coordinator")
        if cache_rows < 0 or max_age_s <= 0:
            raise InvalidRequest(
                f"a cache of {cache_rows} rows for {max_age_s} s; use 0 rows for no cache"
            )
        self.timeout_s = (timeouts or Timeouts(call_s=_LOOKUP_S)).call_s
        self._cache_rows = cache_rows
        self._max_age_s = max_age_s
        max_frame_bytes = (limits or Limits()).max_frame_bytes
        self._metrics = ClientMetrics(registry)
        dial = Dialer(
            security=with_local_token(security, addresses[0]),
            metrics=self._metrics.rpc,
            max_frame_bytes=max_frame_bytes,
            retry=retry,
        ).of_process()
        # Each with a token of its own: that of a cluster on this machine is for its coordinator.
        dials = [replace(dial, security=with_local_token(security, one)) for one in addresses]
        self._coordinators = FailoverCoordinator(
            [dial.coordinator(one) for dial, one in zip(dials, addresses, strict=True)]
        )
        if dial.tickets is not None:
            dial.tickets.join(self._coordinators.issue_tickets)
        self._servers = ParameterServers(self._coordinators, dial, max_frame_bytes=max_frame_bytes)
        self._lock = threading.Lock()  # guards all below
        self._tables: dict[str, Table] = {}
        self._sets: dict[tuple[str, ...], TableSet] = {}
        self._caches: dict[str, RowCache] = {}

    def tables(self, *, timeout_s: float | None = None) -> dict[str, int]:
        """Return the dim of each table, by name."""
        specs = self._coordinators.list_tables(self._deadline(timeout_s))
        return {spec.name: spec.dim for spec in specs}

    def lookup(self, table: str, ids: Any, *, timeout_s: float | None = None) -> Any:
        """Look up rows of one table.

        Args:
            table: Its name.
            ids: Integers of any shape; an array, list, number or pandas Series.
            timeout_s: Deadline; the reader's by default.

        Returns:
            The rows, [*ids.shape, dim]; for a Series a DataFrame with its index.

        Raises:
            TableNotFound: There is no such table.
            IdOutOfRange: An id is not a row of the table.
            Unreachable: Servers could not be reached in time.
        """
        (rows,) = self._read([table], [ids], self._deadline(timeout_s))
        return like_ids(rows, ids, table)

    def lookup_many(self, ids: Any, *, timeout_s: float | None = None) -> Any:
        """Look up rows of several tables in one round of requests.

        Args:
            ids: For each table, by name, its ids; a mapping or a pandas DataFrame.
            timeout_s: Deadline; the reader's by default.

        Returns:
            For each table, by name, what `lookup` returns; for a DataFrame one DataFrame with its
            index, whose columns are named "<table>.<element>".
        """
        if not is_frame(ids) and not isinstance(ids, Mapping):
            raise InvalidRequest("ids must be a mapping or a DataFrame, with ids by table")
        given = {str(name): ids[name] for name in ids}
        rows = self._read(list(given), list(given.values()), self._deadline(timeout_s))
        found = {
            name: like_ids(some, given[name], name) for name, some in zip(given, rows, strict=True)
        }
        return side_by_side(list(found.values())) if is_frame(ids) else found

    def push(self, *args: object, **options: object) -> NoReturn:
        """Raise ReadOnly: a reader cannot push gradients.

        Raises:
            ReadOnly: Always.
        """
        raise ReadOnly("a reader cannot push gradients; use gm.connect and mesh.open_table")

    def _read(self, names: list[str], given: list[Any], deadline: Deadline) -> list[Array]:
        """Return the rows of each table, [*shape, dim]."""
        if not names:
            return []
        tables = self._set(names, deadline)
        shaped = [as_ids(ids, name) for ids, name in zip(given, names, strict=True)]
        flat = [ids.reshape(-1) for ids in shaped]
        if self._cache_rows:
            rows = self._read_cached(tables, flat, deadline)
        else:
            rows = _look_up(tables, flat, deadline)
        return [
            some.reshape(*ids.shape, some.shape[-1]) for some, ids in zip(rows, shaped, strict=True)
        ]

    def _read_cached(self, tables: TableSet, flat: list[Ids], deadline: Deadline) -> list[Array]:
        caches = [self._cache(table) for table in tables.tables]
        distinct = [unique_inverse(ids) for ids in flat]
        rows = [
            np.empty((ids.size, table.dim), table.dtype)
            for (ids, _), table in zip(distinct, tables.tables, strict=True)
        ]
        steps = list(zip(caches, distinct, rows, strict=True))
        missing = [cache.take(ids, out) for cache, (ids, _), out in steps]
        asked_at = [cache.now() for cache in caches]
        wanted = [ids[some] for (ids, _), some in zip(distinct, missing, strict=True)]
        hits = sum(ids.size for ids, _ in distinct) - sum(ids.size for ids in wanted)
        self._metrics.tables.add(cache_hits=hits)
        if any(ids.size for ids in wanted):
            fresh = _look_up(tables, wanted, deadline)
            for index, (cache, _, out) in enumerate(steps):
                out[missing[index]] = fresh[index]
                cache.put(wanted[index], fresh[index], asked_at[index])
        return [gather(out, inverse) for _, (_, inverse), out in steps]

    def _set(self, names: list[str], deadline: Deadline) -> TableSet:
        key = tuple(names)
        with self._lock:
            if key in self._sets:
                return self._sets[key]
            known = dict(self._tables)
        for name in names:
            if name not in known:
                spec = self._coordinators.describe_table(name, deadline)
                known[name] = Table(
                    spec, self._servers, self.push, self.timeout_s, metrics=self._metrics.tables
                )
        with self._lock:
            self._tables = known | self._tables
            return self._sets.setdefault(key, TableSet([self._tables[name] for name in names]))

    def _cache(self, table: Table) -> RowCache:
        with self._lock:
            if table.name not in self._caches:
                self._caches[table.name] = RowCache(
                    self._cache_rows, table.dim, table.dtype, self._max_age_s
                )
            return self._caches[table.name]

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline.within(timeout_s, self.timeout_s)

    def close(self) -> None:
        """Close all connections; may be called twice."""
        self._servers.close()
        self._coordinators.close()
        self._metrics.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TableReader({self._coordinators.address!r})"


def _joined(flat: list[Ids]) -> tuple[Ids, Ids]:
    """Return the ids of all tables in one array, and where those of each begin."""
    starts = np.cumsum([0, *(ids.size for ids in flat)]).astype(np.int64)
    return (flat[0] if len(flat) == 1 else np.concatenate(flat)), starts


def _look_up(tables: TableSet, flat: list[Ids], deadline: Deadline) -> list[Array]:
    """Return the row of each id, table by table."""
    ids, starts = _joined(flat)
    wanted = WantedIds(ids, starts)
    if len(flat) == 1:
        return [start_lookup(tables, wanted, deadline).gather()]
    found = look_up(tables, wanted, deadline)
    inverses = np.split(found.route.inverse, starts[1:-1])
    return [
        gather(found.rows[group], inverse)
        for group, inverse in zip(tables.group_of, inverses, strict=True)
    ]
