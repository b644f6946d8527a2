"""Which ids the values of a feature have, by how often they occur in the training data."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gradmesh.engine.kernels.id_map import IdMap
from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.errors import DataError

ABSENT: Final = 0
"""The id of a value that is missing."""
RARE: Final = 1
"""The id of all values that are too rare, or were never seen."""
_FIRST: Final = 2


@final
class Vocabulary:
    """The ids of each feature's values: 0 missing, 1 rare or unknown, then by frequency.

    Args:
        tokens: The values of each feature that have an id of their own, in the order of the ids.
        threshold: How often a value had to occur; kept to be told.
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
        return tuple(_FIRST + some.size for some in self._tokens)

    def ids(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ids of tokens, int64 [n, features]."""
        out = np.empty(tokens.shape, np.int64)
        for feature, known in enumerate(self._maps):
            column = tokens[:, feature]
            found = known.find(column) + _FIRST
            found[found < _FIRST] = RARE
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
            DataError: The file is missing or none of ours.
        """
        try:
            with safe_open(file, "numpy") as opened:
                count = len(opened.keys())
                tokens: list[Any] = [opened.get_tensor(f"feature-{i}") for i in range(count)]
                return cls(tokens, int((opened.metadata() or {})["threshold"]))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise DataError(
                f"{file} is no vocabulary: {error}; let `gradmesh train` make it anew"
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
        """Return the vocabulary of values that occur at least so often.

        Args:
            threshold: How often.
            most: How many ids a feature may have at most, the frequent ones first.
        """
        tokens = []
        for known, counts in zip(self._maps, self._counts, strict=True):
            names = known.ids()
            # By frequency, and by value where that is equal: not by the order of reading.
            order = np.lexsort((names, -counts))
            order = order[: int((counts >= threshold).sum())]
            tokens.append(names[order if most is None else order[: max(0, most - _FIRST)]])
        return Vocabulary(tokens, threshold)
