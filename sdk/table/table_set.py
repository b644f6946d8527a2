"""Tables that are looked up together, and the requested ids of each."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.table.wire import RequestHeads

if TYPE_CHECKING:
    from gradmesh.sdk.table.table import Table


class WantedIds(NamedTuple):
    """Ids of several tables, table after table; not checked yet.

    Args:
        ids: int64 [n].
        starts: int64 [tables + 1], where the ids of each table begin.
    """

    ids: Ids
    starts: NDArray[np.int64]

    def equals(self, other: "WantedIds") -> bool:
        """Return whether the same ids are wanted in the same order."""
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ids, other.ids)


@final
class TableSet:
    """Tables of one mesh that are looked up in one request.

    Tables of the same dim and type form a group, whose rows come in one matrix.

    Args:
        tables: At least one; the same table may come twice.

    Raises:
        InvalidRequest: There is none, or they belong to different meshes.
    """

    def __init__(self, tables: Sequence["Table"]) -> None:
        self.tables = list(tables)
        if not self.tables:
            raise InvalidRequest("a layer needs at least one table")
        if len({id(table.servers) for table in self.tables}) != 1:
            names = ", ".join(table.name for table in self.tables)
            raise InvalidRequest(f"the tables of one layer must come from one mesh: {names}")
        self.servers = self.tables[0].servers
        self.metrics = self.tables[0].metrics
        self.wire = self.tables[0].wire
        if any(table.wire != self.wire for table in self.tables):
            raise InvalidRequest("tables that are read together must have the same wire precision")
        self.timeout_s = self.tables[0].timeout_s
        self.names = [table.name for table in self.tables]
        kinds = list(dict.fromkeys((table.dim, table.dtype) for table in self.tables))
        self.groups: list[tuple[int, np.dtype[Any]]] = kinds
        self.group_of = np.array([kinds.index((t.dim, t.dtype)) for t in self.tables], np.int64)
        self.order = np.argsort(self.group_of, kind="stable")
        self.group_list: list[int] = self.group_of.tolist()
        self.row_bytes = [table.dim * table.dtype.itemsize for table in self.tables]
        self.bounds = np.array(
            [[t.first_id for t in self.tables], [t.last_id for t in self.tables]], np.int64
        )
        # The bounds of a single table, as plain numbers.
        self.only: tuple[int, int] | None = None
        if len(self.tables) == 1:
            self.only = self.tables[0].first_id, self.tables[0].last_id
        self.heads = RequestHeads(self.names, self.wire)

    def out_of_range(self, wanted: WantedIds, position: int) -> IdOutOfRange:
        """Return the error for an id that is not a row of its table."""
        table = int(np.searchsorted(wanted.starts, position, side="right")) - 1
        name, bad = self.names[table], int(wanted.ids[position])
        return IdOutOfRange(
            f"table {name!r}: id {bad} is not among its rows 0 to {self.bounds[1, table]}",
            table=name,
            id=bad,
        )


def as_ids(ids: object, table: str) -> Ids:
    """Return ids as int64, in C order and in their shape.

    Args:
        ids: A tensor, array, pandas Series, list or number.
        table: Whose ids, for the message.

    Raises:
        InvalidRequest: They are not integers.
        IdOutOfRange: One is beyond int64.
    """
    if type(ids) is np.ndarray and ids.dtype == np.int64 and ids.flags.c_contiguous:
        return ids
    array = np.asarray(ids.data if isinstance(ids, Tensor) else _plain(ids))
    if not array.size:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidRequest(
            f"table {table!r}: ids must be integers, not {array.dtype}", table=table
        )
    if array.dtype == np.uint64 and (bad := int(array.max())) >= 2**63:
        raise IdOutOfRange(
            f"table {table!r}: id {bad} is not an int64; hash it to one", table=table, id=bad
        )
    return np.asarray(array, dtype=np.int64, order="C")


def _plain(ids: Any) -> Any:
    """Return integers of pandas' own types as numpy's; else the ids."""
    dtype = getattr(ids, "dtype", None)
    if not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "") in ("i", "u"):
        # With missing values they are not integers.
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            return ids.to_numpy(np.int64)
    return ids
