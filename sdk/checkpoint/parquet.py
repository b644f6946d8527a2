"""Rows as a Parquet file with the columns `id` and `row`; elements of 16 bits as float32.

Needs pyarrow, from the extra `data`.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.checkpoint.row_files import RowReader, RowWriter, bad_file, check_arrays

# Besides pyarrow's own errors; the last is that of types without an equivalent in numpy.
_DAMAGE = (OSError, ValueError, TypeError, OverflowError, NotImplementedError)


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise InvalidRequest(
            "Parquet files need pyarrow; run `pip install gradmesh[data]`, or use .safetensors "
            "or .npz"
        ) from None


@final
class ParquetWriter(RowWriter):
    """Writes one row group per block.

    Args:
        file: What is written.
        dim: Elements in a row.
        dtype: Of the elements.
    """

    def __init__(self, file: Path, dim: int, dtype: np.dtype[Any]) -> None:
        self._arrow, parquet = _pyarrow()
        self._dim = dim
        self._dtype = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        element = self._arrow.from_numpy_dtype(self._dtype)
        self._schema = self._arrow.schema(
            [
                self._arrow.field("id", self._arrow.int64(), nullable=False),
                self._arrow.field("row", self._arrow.list_(element, dim), nullable=False),
            ]
        )
        self._file = parquet.ParquetWriter(file, self._schema)

    def write(self, ids: Ids, rows: Array) -> None:
        """Add rows."""
        flat = self._arrow.array(rows.astype(self._dtype, copy=False).reshape(-1))
        columns = [
            self._arrow.array(ids),
            self._arrow.FixedSizeListArray.from_arrays(flat, self._dim),
        ]
        self._file.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


@final
class ParquetReader(RowReader):
    """Reads batches; rows may be lists of any list type, all of one length.

    Args:
        path: The file.

    Raises:
        InvalidRequest: It has no columns `id` and `row`.
    """

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = _pyarrow()
        self._path = path
        try:
            with self._parquet.ParquetFile(path) as file:
                schema, self.count = file.schema_arrow, file.metadata.num_rows
            id_, row = schema.field("id").type, schema.field("row").type
            self.dtype = np.dtype(row.value_type.to_pandas_dtype())
            self._id_type = np.dtype(id_.to_pandas_dtype())
            self.dim = row.list_size if self._arrow.types.is_fixed_size_list(row) else self._first()
        except (*_DAMAGE, KeyError, AttributeError, self._arrow.ArrowException) as error:
            raise bad_file(path, error) from None
        check_arrays(
            path,
            (self._id_type, (self.count,)),
            (self.dtype, (self.count, self.dim)),
        )

    def _first(self) -> int:
        with self._parquet.ParquetFile(self._path) as file:
            for batch in file.iter_batches(1, columns=["row"]):
                return len(batch.column(0)[0])
        return 0

    def blocks(self, most: int) -> Iterator[tuple[Ids, Array]]:
        """Yield all rows."""
        try:
            with self._parquet.ParquetFile(self._path) as file:
                for batch in file.iter_batches(most, columns=["id", "row"]):
                    ids, rows = batch.column(0), batch.column(1)
                    flat = rows.flatten()
                    if ids.null_count or flat.null_count or len(flat) != len(ids) * self.dim:
                        raise ValueError(f"a row is missing or has not {self.dim} elements")
                    values = flat.to_numpy(zero_copy_only=False)
                    yield ids.to_numpy(), values.reshape(len(ids), self.dim)
        except (*_DAMAGE, self._arrow.ArrowException) as error:
            raise bad_file(self._path, error) from None
