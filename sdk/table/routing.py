"""Which ids go to which server, and where the rows that come back belong. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import all_finite, first_outside, unique_inverse
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.precision import EXACT, unpack_all
from gradmesh.protos.sharding import Ids, ShardMap


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one server is asked of one table.

    Args:
        table: Index of the table in the request.
        ids: Unique ids, int64 [n].
        places: Where their rows stand among all rows of the request: int64 [n], or a slice.
    """

    table: int
    ids: Ids
    places: NDArray[np.int64] | slice


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

    def reader(self, out: Array, wire: int = EXACT) -> Callable[[int, Frame[Any]], None]:
        """Return what puts a server's rows where they belong.

        Args:
            out: [total, dim].
            wire: Precision of the rows on the wire.
        """

        def read(shard: int, reply: Frame[Any]) -> None:
            arrays = reply.arrays if wire == EXACT else unpack_all(reply.arrays, wire)
            for piece, rows in zip(self.pieces[shard], arrays, strict=True):
                out[piece.places] = rows

        return read

    def split(self, rows: Array) -> dict[int, list[Array]]:
        """Cut [total, dim] into what belongs to each server."""
        return {
            shard: [rows[piece.places] for piece in pieces] for shard, pieces in self.pieces.items()
        }


def route(ids: Sequence[Ids], shards: ShardMap) -> Route:
    """Route the flat ids of several tables; each id travels once a table."""
    pieces: dict[int, list[Piece]] = {}
    inverses: list[NDArray[np.int64]] = []
    total = 0
    for table, wanted in enumerate(ids):
        unique, inverse = unique_inverse(wanted)
        inverses.append(inverse + total if total else inverse)
        if len(shards.names) == 1:
            if unique.size:
                places = slice(total, total + unique.size)
                pieces.setdefault(0, []).append(Piece(table, unique, places))
        else:
            for shard, piece in _spread(table, unique, total, shards):
                pieces.setdefault(shard, []).append(piece)
        total += unique.size
    return Route(pieces, inverses, total)


def _spread(table: int, ids: Ids, before: int, shards: ShardMap) -> Iterator[tuple[int, Piece]]:
    """Yield what each shard is asked of a table whose rows stand after `before` others."""
    owners = shards.shards_of(ids)
    for shard in range(len(shards.names)):
        (places,) = np.nonzero(owners == shard)
        if places.size:
            yield shard, Piece(table, ids[places], places + before)


def check_ids(ids: object, table: str, rows: int) -> Ids:
    """Return ids as int64.

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
    # An unsigned 64-bit id beyond int64 becomes negative, so it is outside as well.
    wide = array.astype(np.int64, copy=False)
    flat = wide.reshape(-1)
    place = first_outside(flat, rows)
    if place >= 0:
        bad = int(array.reshape(-1)[place])
        raise IdOutOfRange(
            f"table {table!r}: id {bad} is not among its rows 0 to {rows - 1}", table=table, id=bad
        )
    return wide


def check_grads(grads: object, shape: tuple[int, ...], dtype: np.dtype[Any], table: str) -> Array:
    """Return gradients of a table in the type of its rows.

    Raises:
        InvalidRequest: Another shape, or no finite numbers.
    """
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
    if not all_finite(fitting):
        raise InvalidRequest(f"table {table!r}: a gradient is NaN or infinite", table=table)
    return fitting
