"""A data set of Parquet files; a block is a row group, or a slice of one. Needs gradmesh[data].

Only a whole row group can be read, and the last one stays in memory. So the slices of a group come
one after the other, and shuffling permutes the groups and the samples of a slice.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.data.blocks import BlockOrder, FileBlocks
from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.samples import BadLine, Columns, without_bad
from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.data.text_layout import hash_texts
from gradmesh.trainer.errors import DataError

# Values of a row group: compressed, a few bytes may stand for billions.
_MAX_VALUES = 1 << 30


class RowGroup(NamedTuple):
    """The samples of a row group that belong to a share of the file."""

    number: int
    begin: int
    end: int
    before: int
    """Samples of the file before the group."""


@final
class ParquetFile:
    """One file.

    Args:
        path: Where it is.
        label: Name of the column with the label; None if there is none.
        dense: Names of the columns with numbers.
        categorical: Names of the columns with categories, integers or text.
        begin: Fraction of the samples to begin at.
        end: Fraction to end at.

    Attributes:
        groups: The row groups with samples of this share.

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
            self._damage = (OSError, ValueError, TypeError, KeyError, arrow.ArrowException)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise DataError(f"{path} is not a Parquet file: {error}") from error
        held = set(self._file.schema_arrow.names)
        wanted = [*([label] if label else []), *dense, *categorical]
        missing = [name for name in wanted if name not in held]
        if missing:
            raise DataError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(sorted(held))}"
            )
        facts = self._file.metadata
        first, last = int(facts.num_rows * begin), int(facts.num_rows * end)
        self.groups: list[RowGroup] = []
        before = 0
        for number in range(facts.num_row_groups):
            rows = int(facts.row_group(number).num_rows)
            if not 0 <= rows * len(wanted) <= _MAX_VALUES:
                raise DataError(
                    f"{path}, row group {number}: {rows:,} rows of {len(wanted)} columns; a group "
                    f"is in memory as a whole, and may have {_MAX_VALUES:,} values"
                )
            span = max(first - before, 0), min(last - before, rows)
            if span[0] < span[1]:
                self.groups.append(RowGroup(number, *span, before))
            before += rows
        self._held: tuple[int, Columns] | None = None

    def read(self, group: int, begin: int, end: int) -> Columns:
        """Return samples of a row group; they belong to the caller.

        Raises:
            DataError: A column has the wrong type.
        """
        if self._held is None or self._held[0] != group:
            self._held = None  # before the next one is read: not two at once
            self._held = group, self._read(group)
        labels, dense, tokens = self._held[1]
        span = slice(begin, end)
        return Columns(labels[span].copy(), dense[span].copy(), tokens[span].copy())

    def _read(self, group: int) -> Columns:
        wanted = [*([self._label] if self._label else []), *self._dense, *self._categorical]
        try:
            table = self._file.read_row_group(group, columns=wanted)
            count = table.num_rows
            labels = np.zeros(count, np.float32)
            dense = np.empty((count, len(self._dense)), np.float32)
            tokens = np.empty((count, len(self._categorical)), np.int64)
            if self._label:
                labels = table[self._label].to_numpy().astype(np.float32)
            for place, name in enumerate(self._dense):
                dense[:, place] = table[name].to_numpy()
            for place, name in enumerate(self._categorical):
                tokens[:, place] = _tokens(table[name])
        except self._damage as error:
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
class ParquetBlocks(FileBlocks):
    """Samples from row groups.

    Args:
        files: In the order of an epoch that is not shuffled.
        block_samples: Most samples of a block; a longer row group makes several.
        encoder: Makes ids of values.
        order: Whether and how epochs are shuffled.
    """

    def __init__(
        self,
        files: Sequence[ParquetFile],
        block_samples: int,
        encoder: Encoder,
        order: BlockOrder,
    ) -> None:
        super().__init__(encoder, order)
        self._block_samples = block_samples
        self._groups = [(file, group) for file in files for group in file.groups]
        self._epoch: tuple[int, list[tuple[int, int]]] | None = None

    def read_columns(self, epoch: int, block: int) -> tuple[Columns, list[BadLine]] | None:
        """Return a block before it is encoded; see FileBlocks."""
        parts = self._parts(epoch)
        if block >= len(parts):
            return None
        place, begin = parts[block]
        file, group = self._groups[place]
        end = min(begin + self._block_samples, group.end)
        columns = file.read(group.number, begin, end)
        return without_bad(columns, str(file.path), group.before + begin + 1)

    def _parts(self, epoch: int) -> list[tuple[int, int]]:
        """Return the blocks of an epoch: which row group, and its first sample."""
        if self._epoch is None or self._epoch[0] != epoch:
            found = []
            for number in range(len(self._groups)):
                place = self._order.place(epoch, number, len(self._groups))
                assert place is not None
                group = self._groups[place][1]
                firsts = range(group.begin, group.end, self._block_samples)
                found += [(place, first) for first in firsts]
            self._epoch = epoch, found
        return self._epoch[1]

    def count(self) -> int:
        """Return how many samples there are."""
        return sum(group.end - group.begin for _, group in self._groups)
