"""Pooled embedding rows from the servers, as a layer of a model."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import cat, embedding_bag, split, take_rows
from gradmesh.engine.nn import Module
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.nn.bags import Bags, read_bags
from gradmesh.sdk.nn.row_source import RowSource
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.table_set import TableSet, WantedIds

_MODES = ("sum", "mean", "max")


@final
class RemoteEmbeddingBag(Module):
    """Looks bags of ids up and pools them; all tables and servers in one round.

    As torch's EmbeddingBag for each table, with rows on the servers. The tables' results stand side
    by side, so that tables of different dims fit in one layer; `split` takes them apart, and with
    equal dims `pooled.reshape(batch, tables, dim)` does. Sums run in the order of the ids, with
    the engine's own kernels: values and gradients are those of a local EmbeddingBag to the bit.

    Args:
        tables: One or several, of any dims.
        mode: "sum", "mean" or "max".
        include_last_offset: Whether offsets end with the number of ids.
        padding_idx: An id that only fills bags up, for all tables or one for each; it is neither
            fetched nor counted, and gets no gradient.
        prefetch_depth: How many batches `prefetch` may prefetch; 0 for none.

    Raises:
        InvalidRequest: There is no such mode, or a padding is no row of its table.
    """

    def __init__(
        self,
        tables: Table | Sequence[Table],
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | Sequence[int | None] | None = None,
        prefetch_depth: int = 1,
    ) -> None:
        super().__init__()
        if mode not in _MODES:
            raise InvalidRequest(f"mode is {mode!r}; use one of {', '.join(_MODES)}")
        self.tables = [tables] if isinstance(tables, Table) else list(tables)
        self.mode = mode
        self.include_last_offset = include_last_offset
        self._set = TableSet(self.tables)
        self.dims = [table.dim for table in self.tables]
        self.padding_idx = _paddings(self.tables, padding_idx)
        self._source = RowSource(self._set, prefetch_depth)
        # The tables of each group, whose rows come in one matrix.
        kinds = range(len(self._set.groups))
        self._members = [np.flatnonzero(self._set.group_of == kind) for kind in kinds]

    def forward(self, ids: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        """Return the pooled rows.

        Args:
            ids: For one table integers [batch, length], or [n] with offsets. For several a list of
                such arrays, or one packed array [n]: all ids of the first table, then all of the
                second, and so on.
            offsets: Where each bag begins: [batch] for one table, a list of such for a list of
                arrays; [tables * batch + 1] for a packed array, the bags of the first table first.
            per_sample_weights: A factor for each id, in the form of the ids; for mode "sum" only.

        Returns:
            [batch, sum of dims], the tables side by side; 0 for an empty bag.

        Raises:
            InvalidRequest: The shapes do not fit.
            IdOutOfRange: An id is no row of its table.
        """
        given = self._read(ids, offsets)
        weights = self._read_weights(per_sample_weights, given)
        bags = given.without(self.padding_idx)
        groups, fetched = self._source.fetch(self._want(bags))
        pooled = [
            self._pool(rows, fetched.route.inverse, bags, weights, members)
            for rows, members in zip(groups, self._members, strict=True)
        ]
        if len(pooled) == 1:
            return pooled[0]
        columns: dict[int, Tensor] = {}
        for members, whole in zip(self._members, pooled, strict=True):
            some = members.tolist()
            parts = split(whole, [self.dims[table] for table in some], 1)
            columns.update(zip(some, parts, strict=True))
        result: Tensor = cat([columns[table] for table in range(len(self.tables))], 1)
        return result

    def split(self, pooled: Tensor) -> list[Tensor]:
        """Return what `forward` gave table by table, [batch, dim] each."""
        return list(split(pooled, self.dims, 1))

    def prefetch(self, ids: Any, offsets: Any = None) -> bool:
        """Ask for the rows of the next batch, as RemoteEmbedding's `prefetch` does.

        Args:
            ids: As for `forward`.
            offsets: As for `forward`.

        Returns:
            Whether a request went out: not outside a context, nor beyond the depth.
        """
        bags = self._read(ids, offsets).without(self.padding_idx)
        return self._source.prefetch(self._want(bags))

    def discard_prefetched(self) -> None:
        """Forget what was prefetched and not used."""
        self._source.discard()

    def _read(self, ids: Any, offsets: Any) -> Bags:
        last = self.include_last_offset
        return read_bags(ids, offsets, self._set.names, include_last_offset=last)

    def _want(self, bags: Bags) -> WantedIds:
        return WantedIds(bags.ids, bags.table_starts)

    def _pool(
        self,
        rows: Tensor,
        inverse: NDArray[Any],
        bags: Bags,
        weights: Any,
        members: NDArray[np.int64],
    ) -> Tensor:
        """Pool the bags of the tables of one group, [batch, tables * dim]."""
        order, starts = bags.by_sample(members)
        dtype = rows.dtype
        wide = rows.to(np.float32) if np.dtype(dtype).itemsize == 2 else rows
        factors = None
        if weights is not None:
            places = order if bags.kept is None else bags.kept[order]
            factors = take_rows(weights.to(wide.dtype), places).reshape(-1)
        pooled = embedding_bag(
            Tensor(inverse[order]),
            wide,
            Tensor(starts),
            mode=self.mode,
            per_sample_weights=factors,
            include_last_offset=True,
        )
        batch, width = bags.lengths.shape[1], len(members) * rows.shape[1]
        result: Tensor = pooled.to(dtype).reshape(batch, width)
        return result

    def _read_weights(self, given: Any, bags: Bags) -> Tensor | None:
        """Return the factors as one column, [n, 1]."""
        if given is None:
            return None
        if self.mode != "sum":
            raise InvalidRequest(f"per_sample_weights need mode 'sum', not {self.mode!r}")
        parts = given if isinstance(given, list | tuple) and len(self.tables) > 1 else [given]
        tensors = [as_tensor(part) for part in parts]
        if sum(tensor.data.size for tensor in tensors) != bags.ids.size:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise InvalidRequest(f"per_sample_weights {shapes} for {bags.ids.size} ids")
        columns = [tensor.reshape(-1, 1) for tensor in tensors]
        joined: Tensor = columns[0] if len(columns) == 1 else cat(columns, 0)
        return joined

    def extra_repr(self) -> str:
        """Show tables and mode."""
        return f"{', '.join(self._set.names)}, mode={self.mode!r}"


def _paddings(
    tables: Sequence[Table], given: int | Sequence[int | None] | None
) -> list[int | None]:
    """Return the padding of each table, as a row of it."""
    each = [given] * len(tables) if given is None or isinstance(given, int) else list(given)
    if len(each) != len(tables):
        raise InvalidRequest(f"{len(each)} paddings for {len(tables)} tables")
    return [_padding(table, padding) for table, padding in zip(tables, each, strict=True)]


def _padding(table: Table, given: int | None) -> int | None:
    """Return a padding as an id; negative ones count from the end, as in torch."""
    if given is None or not table.spec.rows:
        return given
    if not -table.spec.rows <= given < table.spec.rows:
        raise InvalidRequest(
            f"table {table.name!r}: padding_idx {given} is none of its {table.spec.rows} rows",
            table=table.name,
        )
    return given % table.spec.rows
