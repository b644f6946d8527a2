"""From what files hold to what models take: ids in range, numbers without gaps."""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, final

import numpy as np

from gradmesh.trainer.data.batch import Batch
from gradmesh.trainer.data.columns import Columns
from gradmesh.trainer.data.fields import Fields
from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.data.vocabulary import Vocabulary
from gradmesh.trainer.errors import DataError

IdRule: TypeAlias = Literal["hash", "vocabulary", "number"]
DenseRule: TypeAlias = Literal["log", "none"]

# Two rounds of multiply and shift, by odd constants: neighbours end far apart.
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_STEP: Final = 0x9E3779B97F4A7C15


@final
class Encoder:
    """Turns columns into batches.

    Args:
        dense_features: How many numbers a sample has.
        rows: How many ids each feature has; with a vocabulary it knows better.
        ids: "hash" spreads values over 1 … rows-1, "number" takes them as they are; in both a
            missing one is 0. "vocabulary" looks them up.
        dense: "log" takes log(1 + x) of what is positive and 0 of the rest; missing ones are 0.
        vocabulary: For ids of that kind.

    Raises:
        DataError: The settings do not fit each other.
    """

    def __init__(
        self,
        dense_features: int,
        rows: Sequence[int],
        *,
        ids: IdRule = "hash",
        dense: DenseRule = "log",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if ids == "vocabulary":
            if vocabulary is None:
                raise DataError("data.ids is 'vocabulary', but there is none; set data.vocabulary")
            rows = vocabulary.rows
        elif ids == "hash" and min(rows, default=2) < 2:
            raise DataError("data.rows must be at least 2 each to hash into: id 0 is for missing")
        self.fields = Fields(dense_features, tuple(rows))
        self._ids = ids
        self._dense = dense
        self._vocabulary = vocabulary
        self._rows = np.array(self.fields.rows, np.int64)
        self._salts = np.array(
            [(_STEP * (feature + 1)) % 2**64 for feature in range(len(rows))], np.uint64
        )

    def encode(self, columns: Columns) -> Batch:
        """Return the samples as a batch; the columns may be changed.

        Raises:
            DataError: There are other features than the rows say, or a number is out of range.
        """
        wanted = (self.fields.dense_features, self.fields.features)
        if (columns.dense.shape[1], columns.tokens.shape[1]) != wanted:
            raise DataError(
                f"the data have {columns.dense.shape[1]} numbers and {columns.tokens.shape[1]} "
                f"categorical features a sample, the settings speak of {wanted[0]} and {wanted[1]};"
                " compare data.rows and data.dense_features with the file"
            )
        return Batch(self._encode_dense(columns.dense), self._encode_ids(columns), columns.labels)

    def _encode_dense(
        self, dense: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        dense[np.isnan(dense)] = 0
        if self._dense == "log":
            np.maximum(dense, 0, out=dense)
            np.log1p(dense, out=dense)
        return dense

    def _encode_ids(self, columns: Columns) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        tokens = columns.tokens
        if self._vocabulary is not None and self._ids == "vocabulary":
            return self._vocabulary.ids(tokens)
        missing = tokens == MISSING
        if self._ids == "hash":
            mixed = tokens.view(np.uint64) + self._salts
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
            mixed ^= mixed >> np.uint64(31)
            ids = (mixed % (self._rows - 1).astype(np.uint64)).astype(np.int64) + 1
        else:
            ids = tokens.copy()
        ids[missing] = 0
        wrong = (ids < 0) | (ids >= self._rows)
        if wrong.any():
            sample, feature = np.argwhere(wrong)[0]
            raise DataError(
                f"categorical feature {feature} has the number {ids[sample, feature]}, but "
                f"data.rows gives it {self._rows[feature]} ids; raise that, or set data.ids to"
                " 'hash'"
            )
        return ids
