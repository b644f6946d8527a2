"""RowGrad: the sparse gradient of a table, some rows of it."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.backend import Array, ShapeError, array_module


@final
class RowGrad:
    """A sparse gradient: gradients of some rows of a matrix.

    Args:
        ids: int64 [n], row numbers; may repeat unless `coalesced`.
        rows: [n, dim], one gradient row per id.
        num_rows: Number of rows of the whole matrix.
        coalesced: Whether no id repeats.
    """

    __slots__ = ("coalesced", "ids", "num_rows", "rows")

    def __init__(self, ids: Array, rows: Array, num_rows: int, coalesced: bool = False) -> None:
        if ids.shape[0] != rows.shape[0]:
            raise ShapeError(f"{ids.shape[0]} ids for {rows.shape[0]} gradient rows")
        self.ids = ids
        self.rows = rows
        self.num_rows = num_rows
        self.coalesced = coalesced

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the matrix the gradient is for."""
        return (self.num_rows, *self.rows.shape[1:])

    @property
    def dtype(self) -> Any:
        """Return the dtype of the rows."""
        return self.rows.dtype

    @property
    def is_sparse(self) -> bool:
        """Return True; a tensor returns False."""
        return True

    def coalesce(self) -> RowGrad:
        """Sum the rows of equal ids, in order of appearance; ids keep that order."""
        from gradmesh.engine.autograd.ops.rows import coalesce_rows

        if self.coalesced:
            return self
        ids, rows = coalesce_rows(self.ids, self.rows)
        return RowGrad(ids, rows, self.num_rows, coalesced=True)

    def to_dense(self) -> Array:
        """Return the gradient as an array of the whole matrix's shape."""
        merged = self.coalesce()
        dense = array_module(self.rows).zeros(self.shape, dtype=self.rows.dtype)
        dense[merged.ids] = merged.rows
        return dense

    def __repr__(self) -> str:
        return f"RowGrad(ids={len(self.ids)}, shape={self.shape}, dtype={self.dtype})"


def add_grads(first: Any, second: Any) -> Any:
    """Return the sum of two gradients, dense or of rows, as a new object."""
    if type(first) is RowGrad:
        if type(second) is RowGrad:
            xp = array_module(first.rows)
            ids = xp.concatenate([first.ids, second.ids])
            return RowGrad(ids, xp.concatenate([first.rows, second.rows]), first.num_rows)
        return first.to_dense() + second
    if type(second) is RowGrad:
        return first + second.to_dense()
    return first + second
