"""Which ids go to which server, and where the rows that come back belong. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import unique_inverse
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.table.gradients import clean_grads


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one server is asked of one table.

    Args:
        table: Index of the table in the request.
        ids: Unique ids, int64 [n].
        positions: Where their rows stand among all rows of the request, int64 [n].
    """

    table: int
    ids: Ids
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A request for rows of several tables.

    Args:
        pieces: What each shard is asked; shards that hold nothing are left out.
        inverse: For each table, for each id asked, the position of its row.
        total: How many rows there are in all.
    """

    pieces: dict[int, list[Piece]]
    inverse: list[NDArray[np.int64]]
    total: int

    def asked(self, piece: Piece) -> int:
        """Return how many ids a piece stands for, repeated ones included; by its share."""
        same = [p for pieces in self.pieces.values() for p in pieces if p.table == piece.table]
        distinct = sum(p.ids.size for p in same)
        return round(self.inverse[piece.table].size * piece.ids.size / distinct)

    def merge(self, replies: dict[int, list[Array]], out: Array) -> Array:
        """Put the servers' rows where they belong; `out` is [total, dim]."""
        for shard, arrays in replies.items():
            for piece, rows in zip(self.pieces[shard], arrays, strict=True):
                out[piece.positions] = rows
        return out

    def split(self, rows: Array) -> dict[int, list[Array]]:
        """Cut [total, dim] into what belongs to each server."""
        return {
            shard: [rows.take(piece.positions, axis=0) for piece in pieces]
            for shard, pieces in self.pieces.items()
        }


def route(ids: Sequence[Ids], shards: ShardMap) -> Route:
    """Route the flat ids of several tables; each id travels once a table."""
    pieces: dict[int, list[Piece]] = {}
    inverses: list[NDArray[np.int64]] = []
    total = 0
    for table, wanted in enumerate(ids):
        unique, inverse = unique_inverse(wanted)
        inverses.append(inverse + total)
        owners = shards.shards_of(unique)
        for shard in range(len(shards.names)):
            (positions,) = np.nonzero(owners == shard)
            if positions.size:
                piece = Piece(table, unique[positions], positions + total)
                pieces.setdefault(shard, []).append(piece)
        total += unique.size
    return Route(pieces, inverses, total)


def check_ids(ids: object, table: str, rows: int) -> Ids:
    """Return ids as int64; a table of 0 rows is a hash table, which takes any.

    Raises:
        InvalidRequest: They are no integers.
        IdOutOfRange: One of them is no row of the table.
    """
    array = np.asarray(ids)
    if not array.size:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidRequest(
            f"table {table!r}: ids must be integers, not {array.dtype}", table=table
        )
    least, greatest = int(array.min()), int(array.max())
    if not rows and greatest >= 2**63:
        raise IdOutOfRange(
            f"table {table!r}: id {greatest} is no int64; hash it to one", table=table, id=greatest
        )
    if rows and (least < 0 or greatest >= rows):
        bad = least if least < 0 else greatest
        raise IdOutOfRange(
            f"table {table!r}: id {bad} is not among its rows 0 to {rows - 1}", table=table, id=bad
        )
    return array.astype(np.int64, copy=False)


def check_grads(grads: object, shape: tuple[int, ...], spec: table_pb2.TableSpec) -> Array:
    """Return gradients of a table in the type of its rows.

    Raises:
        InvalidRequest: Another shape, or no finite numbers where the table wants them.
    """
    table, dtype = spec.name, numpy_dtype(spec.dtype)
    array = np.asarray(grads)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise InvalidRequest(
            f"table {table!r}: gradients must be {dtype}, not {array.dtype}", table=table
        )
    if array.shape != shape:
        raise InvalidRequest(
            f"table {table!r}: gradients of shape {array.shape} for ids of shape {shape[:-1]}; "
            f"expected {shape}",
            table=table,
        )
    with np.errstate(over="ignore"):
        fitting: Array = array.astype(dtype, copy=False)
    # Here, too, though each server looks again: one server's refusal cannot undo another's push.
    return clean_grads(fitting, spec)
