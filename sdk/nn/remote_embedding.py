"""RemoteEmbedding: a layer that looks up rows on the parameter servers."""

import functools
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.autograd.ops import take_rows
from gradmesh.engine.kernels import gather
from gradmesh.engine.nn import Module
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.nn.row_source import RowSource
from gradmesh.sdk.table.lookup import FetchedRows, LookupFuture, start_lookup
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.table_set import TableSet, WantedIds, as_ids
from gradmesh.sdk.transport.deadline import Deadline

# A read of at least this many ids is split into this many lookups.
_BIG_IDS = 16_384
_SHARES = 3


@final
class RemoteEmbedding(Module):
    """Look up rows on parameter servers, one table per column of ids, all in one round of requests.

    Inside a context the gradients of the rows go back to the servers with `autograd.backward`.
    Outside, or without gradients, rows are only read.

    Args:
        tables: One table, or one for each column of the ids; all of the same dim and type.
        prefetch_depth: How many batches `prefetch` may prefetch; 0 for none.

    Raises:
        InvalidRequest: The tables differ in dim or type.
    """

    def __init__(self, tables: Table | Sequence[Table], *, prefetch_depth: int = 1) -> None:
        super().__init__()
        self.tables = [tables] if isinstance(tables, Table) else list(tables)
        self._set = TableSet(self.tables)
        if len(self._set.groups) != 1:
            names = ", ".join(f"{t.name} ({t.dim}, {t.dtype})" for t in self.tables)
            raise InvalidRequest(
                f"the tables of this layer must have the same dim and dtype: {names}; "
                "RemoteEmbeddingBag takes different ones"
            )
        self.dim = self.tables[0].dim
        self._source = RowSource(
            self._set, prefetch_depth, functools.partial(_gather, len(self.tables))
        )
        each = -(-len(self.tables) // _SHARES)
        self._shares = [
            (at, TableSet(self.tables[at : at + each])) for at in range(0, len(self.tables), each)
        ]

    def forward(self, ids: Any) -> Tensor:
        """Return the rows.

        Args:
            ids: Integers; [batch] for one table, [batch, tables] for several.

        Returns:
            [batch, dim] or [batch, tables, dim].

        Raises:
            InvalidRequest: The shape does not fit the number of tables.
            IdOutOfRange: An id is not a row of its table.
        """
        array = as_ids(ids, self._set.names[0])
        wanted = self._want(array)
        if array.ndim == 2 and self._source.is_for_reading():
            return Tensor(self._read(wanted, len(array)))
        groups, fetched = self._source.fetch(wanted)
        positions = fetched.route.inverse
        if array.ndim == 2:
            positions = _by_sample(len(self.tables), positions)
        output = fetched.output
        if output is not None:
            output = output.reshape(*positions.shape, self.dim)
        result: Tensor = take_rows(groups[0], positions, output)
        return result

    def _read(self, wanted: WantedIds, batch: int) -> Array:
        """Return rows outside any context, [batch, tables, dim].

        A large request is split, so that requesting, gathering on the servers and copying overlap.
        """
        deadline = Deadline.after(self._set.timeout_s)
        shares = self._shares if wanted.ids.size >= _BIG_IDS else [(0, self._set)]
        out = np.empty((batch, len(self.tables), self.dim), self.tables[0].dtype)
        pending: list[tuple[int, LookupFuture]] = []
        try:
            for at, tables in shares:
                end = at + len(tables.tables)
                ids = wanted.ids[at * batch : end * batch]
                some = WantedIds(ids, wanted.starts[at : end + 1] - at * batch)
                pending.append((at, start_lookup(tables, some, deadline)))
            for at, lookup in pending:
                lookup.gather_columns(out, at)
        except BaseException:
            for _, lookup in pending:
                lookup.cancel()
            raise
        return out

    def prefetch(self, ids: Any) -> bool:
        """Prefetch the rows of the next batch, so that `forward` does not wait for them.

        Call it in the context of a step, after its own forward. The next forward for the same ids
        in a context uses these rows and refreshes those that changed in between, so it returns the
        same rows as without prefetching.

        Args:
            ids: As for `forward`.

        Returns:
            Whether a request was sent: False outside a context and beyond the depth.
        """
        return self._source.prefetch(self._want(as_ids(ids, self._set.names[0])))

    def discard_prefetched(self) -> None:
        """Discard prefetched rows that were not used."""
        self._source.discard()

    def _want(self, ids: Ids) -> WantedIds:
        count = len(self.tables)
        if not (ids.ndim == 1 and count == 1) and (ids.ndim != 2 or ids.shape[1] != count):
            raise InvalidRequest(
                f"ids of shape {ids.shape} for {count} tables; expected [batch, {count}]"
            )
        starts = np.arange(count + 1, dtype=np.int64) * len(ids)
        return WantedIds(ids.T.reshape(-1), starts)


def _by_sample(tables: int, inverse: Array) -> Array:
    """Return the position of each id's row, [batch, tables]."""
    return inverse.reshape(tables, -1).T


def _gather(tables: int, fetched: FetchedRows) -> FetchedRows:
    """Add the row of each id, sample after sample."""
    positions = _by_sample(tables, fetched.route.inverse).reshape(-1)
    return fetched._replace(output=gather(fetched.rows[0], positions), positions=positions)
