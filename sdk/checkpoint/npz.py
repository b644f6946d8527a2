"""Rows as numpy's .npz with the arrays `ids` and `rows`; bfloat16, which it lacks, as float32."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.lib import format as npy

from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.checkpoint.formats import RowReader, RowWriter, bad_file, check_arrays
from gradmesh.sdk.checkpoint.tensors import as_bytes


@final
class NpzWriter(RowWriter):
    """Writes rows at once and keeps the ids for the end: a zip file grows in one place only.

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
