"""Bags of ids of several tables, in the one form that the layers work with. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import interleave
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.table.table_set import as_ids


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """Bags of ids: all of the first table, then all of the second, and so on.

    Args:
        ids: int64 [n].
        starts: int64 [tables, batch], where each bag begins.
        lengths: int64 [tables, batch].
        kept: Which of the ids that were given these are, int64 [n]; None for all.
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
        """Return the bags without the ids that only fill them up; one such id a table."""
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
        """Return the order of some tables' ids that brings the bags of a sample together.

        A pooled batch then is [batch, tables, dim] without being moved.

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
    """Return bags from what a user gives.

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
