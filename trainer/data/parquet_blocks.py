"""A data set of Parquet files; a block is a row group. Needs gradmesh[data]."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.columns import Block, Columns
from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.order import BlockOrder, shuffled
from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.data.text_layout import hash_texts
from gradmesh.trainer.errors import DataError


@final
class ParquetFile:
    """One file.

    Args:
        path: Where it is.
        label: Name of the column with the label; None if there is none.
        dense: Names of the columns with numbers.
        categorical: Names of the columns with categories, integers or text.
        begin: Which share of the row groups to begin at.
        end: Which share to end at.

    Raises:
        DataError: pyarrow is missing, the file is damaged, or it lacks a column.
    """

    def __init__(
        self,
        path: Path,
        label: str | None,
        dense: Sequence[str],
        categorical: Sequence[str],
        begin: float = 0.0,
        end: float = 1.0,
    ) -> None:
        self.path = path
        self._label, self._dense, self._categorical = label, list(dense), list(categorical)
        try:
            arrow = import_module("pyarrow")
            parquet = import_module("pyarrow.parquet")
        except ImportError:
            raise DataError("Parquet needs pyarrow: pip install 'gradmesh[data]'") from None
        try:
            self._file: Any = parquet.ParquetFile(path)
        except (OSError, arrow.ArrowException) as error:
            raise DataError(f"{path} is no Parquet file: {error}") from error
        held = set(self._file.schema_arrow.names)
        wanted = [*([label] if label else []), *dense, *categorical]
        missing = [name for name in wanted if name not in held]
        if missing:
            raise DataError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(sorted(held))}"
            )
        groups = self._file.metadata.num_row_groups
        self.groups = range(int(groups * begin), int(groups * end))

    def rows(self, group: int) -> int:
        """Return how many samples a row group has."""
        return int(self._file.metadata.row_group(group).num_rows)

    def read(self, group: int) -> Columns:
        """Return a row group.

        Raises:
            DataError: A column holds what it should not.
        """
        wanted = [*([self._label] if self._label else []), *self._dense, *self._categorical]
        table = self._file.read_row_group(group, columns=wanted)
        count = table.num_rows
        labels = np.zeros(count, np.float32)
        dense = np.empty((count, len(self._dense)), np.float32)
        tokens = np.empty((count, len(self._categorical)), np.int64)
        try:
            if self._label:
                labels = table[self._label].to_numpy().astype(np.float32)
            for place, name in enumerate(self._dense):
                dense[:, place] = table[name].to_numpy()
            for place, name in enumerate(self._categorical):
                tokens[:, place] = _tokens(table[name])
        except (ValueError, TypeError) as error:
            raise DataError(f"{self.path}, row group {group}: {error}") from error
        return Columns(labels, dense, tokens)


def _tokens(column: Any) -> npt.NDArray[np.int64]:
    """Return a column of integers or texts as tokens."""
    types = import_module("pyarrow.types")
    kind = column.type
    if types.is_integer(kind):
        found: npt.NDArray[np.int64] = column.fill_null(MISSING).to_numpy().astype(np.int64)
        return found
    if types.is_string(kind) or types.is_large_string(kind):
        packed = column.combine_chunks().dictionary_encode()
        texts = [text.encode() for text in packed.dictionary.to_pylist()]
        known: npt.NDArray[np.int64] = np.append(hash_texts(texts), MISSING)
        places: npt.NDArray[np.int64] = packed.indices.fill_null(len(texts)).to_numpy()
        return known[places]
    raise TypeError(f"a category must be integer or text, not {kind}")


@final
class ParquetBlocks(Blocks):
    """Samples from row groups.

    Args:
        files: In the order of an epoch that is not shuffled.
        encoder: Makes ids of values.
        order: Whether and how epochs are shuffled.
    """

    def __init__(self, files: Sequence[ParquetFile], encoder: Encoder, order: BlockOrder) -> None:
        self.fields = encoder.fields
        self._encoder = encoder
        self._order = order
        self._groups = [(file, group) for file in files for group in file.groups]

    def read(self, epoch: int, block: int) -> Block | None:
        """Return a block; see Blocks."""
        columns = self.read_columns(epoch, block)
        if columns is None:
            return None
        return Block(shuffled(self._encoder.encode(columns), self._order, epoch, block))

    def read_columns(self, epoch: int, block: int) -> Columns | None:
        """Return a block before it is encoded."""
        place = self._order.place(epoch, block, len(self._groups))
        if place is None:
            return None
        file, group = self._groups[place]
        return file.read(group)

    def count(self) -> int:
        """Return how many samples there are."""
        return sum(file.rows(group) for file, group in self._groups)
