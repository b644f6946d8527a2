"""From columns of files to batches: ids in range, by hash or vocabulary; no missing values."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from gradmesh.engine.kernels.hashing import IdMap
from gradmesh.sdk.checkpoint.tensors import map_tensors, read_metadata
from gradmesh.trainer.data.samples import Batch, Columns, Fields
from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.errors import DataError

ABSENT: Final = 0
"""The id of a value that is missing."""
RARE: Final = 1
"""The id of all values that are too rare, or unknown."""
_FIRST_ID: Final = 2


@final
class Vocabulary:
    """The ids of each feature's values: 0 missing, 1 rare or unknown, then by frequency.

    Args:
        tokens: The values of each feature that have an id of their own, in the order of the ids.
        threshold: How often a value had to occur; saved with the vocabulary.
    """

    def __init__(self, tokens: Iterable[npt.NDArray[np.int64]], threshold: int) -> None:
        self.threshold = threshold
        self._tokens = [np.ascontiguousarray(some, np.int64) for some in tokens]
        self._maps = [IdMap(max(some.size, 1)) for some in self._tokens]
        for known, some in zip(self._maps, self._tokens, strict=True):
            known.insert(some)

    @property
    def rows(self) -> tuple[int, ...]:
        """How many ids each feature has."""
        return tuple(_FIRST_ID + some.size for some in self._tokens)

    def ids(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ids of tokens, int64 [n, features]."""
        out = np.empty(tokens.shape, np.int64)
        for feature, known in enumerate(self._maps):
            column = tokens[:, feature]
            found = known.find(column) + _FIRST_ID
            found[found < _FIRST_ID] = RARE
            found[column == MISSING] = ABSENT
            out[:, feature] = found
        return out

    def save(self, file: Path) -> None:
        """Write the vocabulary to a .safetensors file; it appears when it is complete."""
        arrays = {f"feature-{i}": some for i, some in enumerate(self._tokens)}
        draft = file.with_name(file.name + ".part")
        save_file(arrays, draft, metadata={"threshold": str(self.threshold)})
        draft.replace(file)

    @classmethod
    def load(cls, file: Path) -> "Vocabulary":
        """Read a vocabulary.

        Raises:
            DataError: The file is missing, or is not a vocabulary.
        """
        try:
            arrays, threshold = map_tensors(file), int(read_metadata(file)["threshold"])
            tokens = [np.array(arrays[f"feature-{i}"]) for i in range(len(arrays))]
            if any(some.dtype != np.int64 or some.ndim != 1 for some in tokens):
                raise ValueError("a feature's values are not a list of int64")
            found = cls(tokens, threshold)
            if any(len(m) != some.size for m, some in zip(found._maps, tokens, strict=True)):
                raise ValueError("a feature has a value twice")
            return found
        except (OSError, KeyError, ValueError) as error:
            raise DataError(
                f"{file} is not a vocabulary: {error}; delete it, `gradmesh train` makes it again"
            ) from error


@final
class VocabularyBuilder:
    """Counts the values of each feature.

    Args:
        features: How many features there are.
    """

    def __init__(self, features: int) -> None:
        self._maps = [IdMap() for _ in range(features)]
        self._counts = [np.zeros(0, np.int64) for _ in range(features)]

    def add(self, tokens: npt.NDArray[np.int64]) -> None:
        """Count tokens, int64 [n, features]."""
        for feature, known in enumerate(self._maps):
            column = tokens[:, feature]
            slots = known.insert(column[column != MISSING])
            counts = np.bincount(slots, minlength=len(known))
            counts[: self._counts[feature].size] += self._counts[feature]
            self._counts[feature] = counts

    def build(self, threshold: int, most: int | None = None) -> Vocabulary:
        """Return the vocabulary of values that occur at least `threshold` times.

        Args:
            threshold: Least number of occurrences.
            most: Most ids of a feature; the frequent values come first.
        """
        tokens = []
        for known, counts in zip(self._maps, self._counts, strict=True):
            names = known.ids()
            # Ties go by value, so that the order of reading does not matter.
            order = np.lexsort((names, -counts))
            order = order[: int((counts >= threshold).sum())]
            tokens.append(names[order if most is None else order[: max(0, most - _FIRST_ID)]])
        return Vocabulary(tokens, threshold)


IdRule: TypeAlias = Literal["hash", "vocabulary", "number"]
DenseRule: TypeAlias = Literal["log", "none"]

# Two rounds of multiply and shift, by odd constants, so that neighbours hash far apart.
_MIX_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_SECOND: Final = np.uint64(0x94D049BB133111EB)
_SALT_STEP: Final = 0x9E3779B97F4A7C15


@final
class Encoder:
    """Turns columns into batches.

    Args:
        dense_features: How many numbers a sample has.
        rows: Number of ids of each feature; a vocabulary overrides it.
        ids: "hash" spreads values over 1 … rows-1, "number" keeps them as they are; both map a
            missing value to 0. "vocabulary" looks them up.
        dense: "log" maps positive values to log(1 + x) and others to 0; missing values are 0.
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
            [(_SALT_STEP * (feature + 1)) % 2**64 for feature in range(len(rows))], np.uint64
        )

    def encode(self, columns: Columns) -> Batch:
        """Return the samples as a batch; the columns may be changed.

        Raises:
            DataError: The number of features does not match the rows, or a number is out of range.
        """
        wanted = (self.fields.dense_features, self.fields.features)
        if (columns.dense.shape[1], columns.tokens.shape[1]) != wanted:
            raise DataError(
                f"the data have {columns.dense.shape[1]} numbers and {columns.tokens.shape[1]} "
                f"categorical features a sample, the settings say {wanted[0]} and {wanted[1]};"
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
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_FIRST
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_SECOND
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
