"""Files of (ids, rows), by the ending of their name: .safetensors, .npz and .parquet.

All are written and read in blocks, so that a table may be bigger than memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids

ENDINGS = (".safetensors", ".npz", ".parquet")


class RowWriter(ABC):
    """Writes a file of which the number of rows is known; a context manager."""

    @abstractmethod
    def write(self, ids: Ids, rows: Array) -> None:
        """Add rows."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RowReader(ABC):
    """Reads a file of rows.

    Attributes:
        count: How many rows there are.
        dim: Elements in a row.
        dtype: Of the elements.
    """

    count: int
    dim: int
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self, most: int) -> Iterator[tuple[Ids, Array]]:
        """Yield all rows from the beginning, at most so many at once.

        Raises:
            InvalidRequest: The file is damaged.
        """

    def ids(self) -> Iterator[Ids]:
        """Yield all ids from the beginning."""
        for ids, _ in self.blocks(1 << 16):
            yield ids


def writer_for(path: Path, file: Path, count: int, dim: int, dtype: np.dtype[Any]) -> RowWriter:
    """Return a writer.

    Args:
        path: Its ending chooses the format.
        file: What is written.
        count: Rows that will come.
        dim: Elements in a row.
        dtype: Of the elements.

    Raises:
        InvalidRequest: No such format, or it needs a package that is missing.
    """
    check_ending(path)
    if path.suffix == ".parquet":
        from gradmesh.sdk.checkpoint.parquet import ParquetWriter

        return ParquetWriter(file, dim, dtype)
    if path.suffix == ".npz":
        from gradmesh.sdk.checkpoint.npz import NpzWriter

        return NpzWriter(file, count, dim, dtype)
    from gradmesh.sdk.checkpoint.row_tensors import TensorsWriter

    return TensorsWriter(file, count, dim, dtype)


def reader_for(path: Path) -> RowReader:
    """Return a reader.

    Raises:
        InvalidRequest: The file is none of ours, or needs a package that is missing.
    """
    check_ending(path)
    if path.suffix == ".parquet":
        from gradmesh.sdk.checkpoint.parquet import ParquetReader

        return ParquetReader(path)
    if path.suffix == ".npz":
        from gradmesh.sdk.checkpoint.npz import NpzReader

        return NpzReader(path)
    from gradmesh.sdk.checkpoint.row_tensors import TensorsReader

    return TensorsReader(path)


def check_ending(path: Path) -> None:
    """Return if a file's name says its format.

    Raises:
        InvalidRequest: It does not.
    """
    if path.suffix not in ENDINGS:
        raise InvalidRequest(
            f"{path}: the name must end in {', '.join(ENDINGS)}, which says the format", path=path
        )


def bad_file(path: Path, why: object) -> InvalidRequest:
    """Return the error about a file that is no table."""
    return InvalidRequest(f"{path} is no file of ids and rows: {why}", path=path)


def check_arrays(
    path: Path,
    ids: tuple[np.dtype[Any], tuple[int, ...]],
    rows: tuple[np.dtype[Any], tuple[int, ...]],
) -> tuple[int, int]:
    """Return count and dim of arrays that may be ids and rows.

    Raises:
        InvalidRequest: They may not.
    """
    if ids[0] != np.int64 or len(ids[1]) != 1:
        raise bad_file(path, f"ids are {ids[0]} {ids[1]}, expected int64 [n]")
    if len(rows[1]) != 2 or rows[1][0] != ids[1][0]:
        raise bad_file(path, f"rows are {rows[1]} for {ids[1][0]} ids, expected [n, dim]")
    return ids[1][0], rows[1][1]
