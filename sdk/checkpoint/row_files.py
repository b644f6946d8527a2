"""Files of (ids, rows) in the safetensors format and as numpy's .npz; Parquet has its own module.

All are written and read in blocks, so that a table may be bigger than memory.
"""

import io
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Self, final

import numpy as np
from numpy.lib import format as npy

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.limits import MAX_TABLE_DIM
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.checkpoint.npy import NpyHeader, read_npy_header
from gradmesh.sdk.checkpoint.tensors import as_bytes, header_of, map_tensors
from gradmesh.sdk.process.bounded_file import open_regular

# Most bytes of one read, which is also the biggest directory of a zip file that is read.
_READ_BYTES: Final = 8 << 20
# Ids are held in memory; of a number for each row, deflate saves a few times its size.
_MAX_ID_RATIO: Final = 100
# Errors of the zip module and its decompressors about damaged files.
_ZIP_ERRORS: Final = (
    ValueError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    RuntimeError,
    OSError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


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
    if rows[1][1] > MAX_TABLE_DIM:
        raise bad_file(path, f"rows of {rows[1][1]} elements, at most {MAX_TABLE_DIM} are possible")
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
        except (OSError, ValueError, KeyError) as error:
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
            with self._opened() as file:
                about_ids, about_rows = (
                    _member(file, "ids.npy", _MAX_ID_RATIO),
                    _member(file, "rows.npy", None),
                )
        except _ZIP_ERRORS as error:
            raise bad_file(path, error) from None
        self.count, self.dim = check_arrays(
            path, (about_ids.dtype, about_ids.shape), (about_rows.dtype, about_rows.shape)
        )
        self.dtype = about_rows.dtype

    def _opened(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(_ShortReads(open_regular(self._path)))

    def blocks(self, most: int) -> Iterator[tuple[Ids, Array]]:
        """Yield all rows."""
        most = max(1, min(most, _READ_BYTES // max(8, self.dim * self.dtype.itemsize)))
        try:
            with self._opened() as file, file.open("ids.npy") as ids, file.open("rows.npy") as rows:
                read_npy_header(ids)
                read_npy_header(rows)
                for begin in range(0, self.count, most):
                    count = min(most, self.count - begin)
                    some = _read(ids, np.dtype(np.int64), count)
                    values = _read(rows, self.dtype, count * self.dim)
                    yield some, values.reshape(count, self.dim)
        except _ZIP_ERRORS as error:
            raise bad_file(self._path, error) from None


@final
class _ShortReads(io.BufferedIOBase):
    """A file of which no read returns more than a bound.

    The zip module reads the whole directory of a file, as long as the file says it is.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes.

        Raises:
            ValueError: They are more than the bound.
        """
        wanted = _READ_BYTES + 1 if size is None or size < 0 else size
        if size is not None and size > _READ_BYTES:
            raise ValueError(f"its directory has {size:,} bytes, at most {_READ_BYTES:,} are read")
        data = self._file.read(wanted)
        if len(data) > _READ_BYTES:
            raise ValueError(f"more than {_READ_BYTES:,} bytes at once")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Set the position."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()
        super().close()


def _member(file: zipfile.ZipFile, name: str, ratio: int | None) -> NpyHeader:
    """Return the header of an array in a zip file.

    Args:
        file: The zip file.
        name: Name of the member.
        ratio: Most bytes that a byte of the file may become.

    Raises:
        ValueError: The array is not stored row by row, or has another size than its member.
    """
    about = file.getinfo(name)
    if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by method {about.compress_type}; use deflate")
    if ratio is not None and about.file_size > ratio * about.compress_size + _READ_BYTES:
        raise ValueError(f"{name} grows {about.file_size // max(1, about.compress_size)} times")
    with file.open(about) as opened:
        header = read_npy_header(opened)
        if header.fortran:
            raise ValueError("its arrays are not stored row by row")
        if header.bytes != about.file_size - opened.tell():
            raise ValueError(
                f"{name}: {header.shape} of {header.dtype} are {header.bytes:,} bytes, the member "
                f"has {about.file_size - opened.tell():,}"
            )
    return header


def _write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(file, about)


def _read(file: IO[bytes], dtype: np.dtype[Any], count: int) -> Array:
    data = file.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ValueError("the file is cut off")
    return np.frombuffer(data, dtype)
