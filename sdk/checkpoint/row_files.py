"""Files of (ids, rows) in the safetensors format and as numpy's .npz; Parquet has its own module.

All are written and read in blocks, so that a table may be bigger than memory.
"""

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self, final

import numpy as np
from numpy.lib import format as npy

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.checkpoint.tensors import as_bytes, header_of, map_tensors


class RowWriter(ABC):
    """Writes a file with a known number of rows; a context manager."""

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
        """Yield all rows from the beginning, at most `most` at once.

        Raises:
            InvalidRequest: The file is damaged.
        """

    def ids(self) -> Iterator[Ids]:
        """Yield all ids from the beginning."""
        for ids, _ in self.blocks(1 << 16):
            yield ids


def bad_file(path: Path, why: object) -> InvalidRequest:
    """Return the error about a file that does not hold a table."""
    return InvalidRequest(f"{path} is not a file of ids and rows: {why}", path=path)


def check_arrays(
    path: Path,
    ids: tuple[np.dtype[Any], tuple[int, ...]],
    rows: tuple[np.dtype[Any], tuple[int, ...]],
) -> tuple[int, int]:
    """Return count and dim of arrays that can be ids and rows.

    Raises:
        InvalidRequest: They cannot.
    """
    if ids[0] != np.int64 or len(ids[1]) != 1:
        raise bad_file(path, f"ids are {ids[0]} {ids[1]}, expected int64 [n]")
    if len(rows[1]) != 2 or rows[1][0] != ids[1][0]:
        raise bad_file(path, f"rows are {rows[1]} for {ids[1][0]} ids, expected [n, dim]")
    return ids[1][0], rows[1][1]


@final
class SafetensorsWriter(RowWriter):
    """Writes both arrays in turn: the header says where each begins.

    Args:
        file: What is written.
        count: Rows that will come.
        dim: Elements in a row.
        dtype: Of the elements.
    """

    def __init__(self, file: Path, count: int, dim: int, dtype: np.dtype[Any]) -> None:
        head = header_of(
            {"ids": (np.dtype(np.int64), (count,)), "rows": (dtype, (count, dim))},
            {"format": "np"},
        )
        self._file = file.open("wb")
        self._file.write(head)
        self._ids_at = len(head)
        self._rows_at = len(head) + 8 * count

    def write(self, ids: Ids, rows: Array) -> None:
        """Add rows."""
        self._file.seek(self._ids_at)
        self._ids_at += self._file.write(as_bytes(ids))
        self._file.seek(self._rows_at)
        self._rows_at += self._file.write(as_bytes(rows))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


@final
class SafetensorsReader(RowReader):
    """Maps both arrays.

    Args:
        path: The file.

    Raises:
        InvalidRequest: It has no ids and rows.
    """

    def __init__(self, path: Path) -> None:
        try:
            arrays = map_tensors(path)
            self._ids, self._rows = arrays["ids"], arrays["rows"]
        except (ValueError, KeyError) as error:
            raise bad_file(path, error) from None
        self.count, self.dim = check_arrays(
            path, (self._ids.dtype, self._ids.shape), (self._rows.dtype, self._rows.shape)
        )
        self.dtype = self._rows.dtype

    def blocks(self, most: int) -> Iterator[tuple[Ids, Array]]:
        """Yield all rows."""
        for begin in range(0, self.count, most):
            part = slice(begin, begin + most)
            yield np.array(self._ids[part]), np.array(self._rows[part])


@final
class NpzWriter(RowWriter):
    """Writes rows to .npz at once, and the ids at the end: a zip file grows at its end only.

    numpy has no bfloat16; such rows are written as float32.

    Args:
        file: What is written.
        count: Rows that will come.
        dim: Elements in a row.
        dtype: Of the elements.
    """

    def __init__(self, file: Path, count: int, dim: int, dtype: np.dtype[Any]) -> None:
        self._dtype = np.dtype(np.float32) if dtype.name == "bfloat16" else dtype
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self._ids: list[Ids] = []
        self._rows: IO[bytes] = self._zip.open("rows.npy", "w", force_zip64=True)
        _write_header(self._rows, self._dtype, (count, dim))

    def write(self, ids: Ids, rows: Array) -> None:
        """Add rows."""
        self._ids.append(ids)
        self._rows.write(as_bytes(rows.astype(self._dtype, copy=False)))

    def close(self) -> None:
        """Finish the file."""
        self._rows.close()
        count = sum(ids.size for ids in self._ids)
        with self._zip.open("ids.npy", "w", force_zip64=True) as file:
            _write_header(file, np.dtype(np.int64), (count,))
            for ids in self._ids:
                file.write(as_bytes(ids))
        self._zip.close()


@final
class NpzReader(RowReader):
    """Reads both arrays side by side.

    Args:
        path: The file.

    Raises:
        InvalidRequest: It has no ids and rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as file:
                with file.open("ids.npy") as ids:
                    about_ids = _read_header(ids)
                with file.open("rows.npy") as rows:
                    about_rows = _read_header(rows)
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise bad_file(path, error) from None
        self.count, self.dim = check_arrays(path, about_ids, about_rows)
        self.dtype = about_rows[0]

    def blocks(self, most: int) -> Iterator[tuple[Ids, Array]]:
        """Yield all rows."""
        try:
            with (
                zipfile.ZipFile(self._path) as file,
                file.open("ids.npy") as ids,
                file.open("rows.npy") as rows,
            ):
                _read_header(ids)
                _read_header(rows)
                for begin in range(0, self.count, most):
                    count = min(most, self.count - begin)
                    some = _read(ids, np.dtype(np.int64), count)
                    values = _read(rows, self.dtype, count * self.dim)
                    yield some, values.reshape(count, self.dim)
        except (ValueError, zipfile.BadZipFile) as error:
            raise bad_file(self._path, error) from None


def _write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(file, about)


def _read_header(file: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if fortran or dtype.hasobject:
        raise ValueError("its arrays are not stored row by row")
    return dtype, shape


def _read(file: IO[bytes], dtype: np.dtype[Any], count: int) -> Array:
    data = file.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ValueError("the file is cut off")
    return np.frombuffer(data, dtype)
