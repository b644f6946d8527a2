"""Rows as a safetensors file with the arrays `ids` and `rows`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.checkpoint.formats import RowReader, RowWriter, bad_file, check_arrays
from gradmesh.sdk.checkpoint.tensors import as_bytes, header_of, map_tensors


@final
class TensorsWriter(RowWriter):
    """Writes both arrays at their places.

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
class TensorsReader(RowReader):
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
