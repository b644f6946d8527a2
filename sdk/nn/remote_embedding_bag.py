"""RemoteEmbeddingBag: a layer that looks up and pools rows on the parameter servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import cat, embedding_bag, split, take_rows
from gradmesh.engine.kernels import interleave
from gradmesh.engine.nn import Module
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.nn.row_source import RowSource
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.table_set import TableSet, WantedIds, as_ids

_MODES = ("sum", "mean", "max")


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """Bags of ids: all of the first table, then all of the second, and so on.

    Args:
        ids: int64 [n].
        starts: int64 [tables, batch], where each bag begins.
        lengths: int64 [tables, batch].
        kept: Indices of these ids among the given ones, int64 [n]; None for all.
    """

    ids: Ids
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    kept: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, ids: Ids, offsets: NDArray[np.int64], tables: int) -> "Bags":
        """Return bags that offsets int64 [tables * batch + 1] delimit.

        Raises:
            InvalidRequest: The offsets do not rise from 0 to the number of ids, or do not divide.
        """
        if offsets.ndim != 1 or not offsets.size or (offsets.size - 1) % tables:
            raise InvalidRequest(
                f"offsets of shape {offsets.shape} for {tables} tables; expected "
                f"[{tables} * batch + 1], the bags of the first table first"
            )
        lengths = offsets[1:] - offsets[:-1]
        if offsets[0] != 0 or offsets[-1] != ids.size or (lengths < 0).any():
            raise InvalidRequest(
                f"offsets must rise from 0 to the number of ids, {ids.size}; these go from "
                f"{offsets[0]} to {offsets[-1]}"
            )
        return cls(ids, offsets[:-1].reshape(tables, -1), lengths.reshape(tables, -1))

    @property
    def table_starts(self) -> NDArray[np.int64]:
        """Where the ids of each table begin, int64 [tables + 1]."""
        tables, batch = self.starts.shape
        found = np.full(tables + 1, self.ids.size, np.int64)
        if batch:
            found[:-1] = self.starts[:, 0]
        return found

    def without(self, padding: Sequence[int | None]) -> "Bags":
        """Return the bags without padding ids; one padding id per table."""
        if all(skip is None for skip in padding):
            return self
        keep = np.ones(self.ids.size, np.bool_)
        bounds = self.table_starts
        for table, skip in enumerate(padding):
            if skip is not None:
                span = slice(bounds[table], bounds[table + 1])
                keep[span] = self.ids[span] != skip
        before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        starts = before[self.starts]
        lengths = before[self.starts + self.lengths] - starts
        return Bags(self.ids[keep], starts, lengths, np.flatnonzero(keep))

    def by_sample(self, tables: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return an order of some tables' ids in which the bags of each sample are adjacent.

        The pooled batch is then [batch, tables, dim] without a transposition.

        Args:
            tables: Which, int64 [m].

        Returns:
            order, int64 [m], places of these ids, and where each bag begins in it,
            int64 [batch * tables + 1].
        """
        order, starts = interleave(self.starts, self.lengths, tables)
        return order, starts


def read_bags(
    ids: Any, offsets: Any, names: Sequence[str], *, include_last_offset: bool = False
) -> Bags:
    """Return bags from the arguments of `forward`.

    Args:
        ids: For one table an array as torch's EmbeddingBag takes it: [batch, length], or [n] with
            offsets. For several tables a list of such arrays, or one packed array [n].
        offsets: For one table [batch]; for a list of arrays a list of such; for a packed array
            [tables * batch + 1].
        names: Names of the tables.
        include_last_offset: Whether offsets, other than packed ones, end with the number of ids.

    Raises:
        InvalidRequest: The shapes do not fit.
    """
    count = len(names)
    if count > 1 and not isinstance(ids, list | tuple):
        array = as_ids(ids, names[0])
        if array.ndim != 1 or offsets is None:
            raise InvalidRequest(
                f"ids of shape {array.shape} for {count} tables; give a list of {count} arrays, or "
                f"one [n] with offsets [{count} * batch + 1]"
            )
        return Bags.of(array, as_ids(offsets, names[0]), count)
    given = [ids] if count == 1 else ids
    given_offsets = [offsets] * count if count == 1 or offsets is None else offsets
    if len(given) != count or len(given_offsets) != count:
        raise InvalidRequest(
            f"{len(given)} arrays of ids and {len(given_offsets)} of offsets for {count} tables"
        )
    read = [
        _read_one(as_ids(some, name), begins, name, include_last_offset)
        for some, begins, name in zip(given, given_offsets, names, strict=True)
    ]
    sizes = {bags.lengths.size for bags in read}
    if len(sizes) > 1:
        raise InvalidRequest(f"the tables have {sorted(sizes)} bags; they must have equally many")
    begins_at = np.cumsum([0, *(bags.ids.size for bags in read)])
    return Bags(
        np.concatenate([bags.ids for bags in read]),
        np.concatenate([b.starts + at for b, at in zip(read, begins_at[:-1], strict=True)]),
        np.concatenate([bags.lengths for bags in read]),
    )


def _read_one(ids: Ids, offsets: Any, name: str, include_last: bool) -> Bags:
    """Return the bags of one table."""
    if ids.ndim == 2 and offsets is None:
        batch, length = ids.shape
        return Bags.of(ids.reshape(-1), np.arange(batch + 1, dtype=np.int64) * length, 1)
    if ids.ndim != 1 or offsets is None:
        raise InvalidRequest(
            f"table {name!r}: ids of shape {ids.shape} "
            f"{'without' if offsets is None else 'with'} offsets; give [batch, length], or [n] "
            "with offsets",
            table=name,
        )
    begins = as_ids(offsets, name)
    if not include_last:
        begins = np.append(begins, ids.size)
    return Bags.of(ids, begins, 1)


@final
class RemoteEmbeddingBag(Module):
    """Look up and pool bags of rows on parameter servers, all in one round of requests.

    As torch's EmbeddingBag for each table, with rows on the servers. The tables' results stand side
    by side, so that tables of different dims fit in one layer; `split` takes them apart, and with
    equal dims `pooled.reshape(batch, tables, dim)` does. Sums run in the order of the ids, with
    the engine's own kernels: values and gradients equal those of a local EmbeddingBag bit for bit.

    Args:
        tables: One or several, of any dims.
        mode: "sum", "mean" or "max".
        include_last_offset: Whether offsets end with the number of ids.
        padding_idx: The padding id, for all tables or one for each; it is neither fetched nor
            counted, and gets no gradient.
        prefetch_depth: How many batches `prefetch` may prefetch; 0 for none.

    Raises:
        InvalidRequest: There is no such mode, or a padding is not a row of its table.
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
            IdOutOfRange: An id is not a row of its table.
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
        """Split the result of `forward` by table, [batch, dim] each."""
        return list(split(pooled, self.dims, 1))

    def prefetch(self, ids: Any, offsets: Any = None) -> bool:
        """Prefetch the rows of the next batch, as RemoteEmbedding's `prefetch` does.

        Args:
            ids: As for `forward`.
            offsets: As for `forward`.

        Returns:
            Whether a request was sent: False outside a context and beyond the depth.
        """
        bags = self._read(ids, offsets).without(self.padding_idx)
        return self._source.prefetch(self._want(bags))

    def discard_prefetched(self) -> None:
        """Discard prefetched rows that were not used."""
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
