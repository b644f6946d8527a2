"""Samples: their features, columns as a file holds them, batches as a model takes them."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """The features of a sample.

    Args:
        dense_features: Number of dense values; may be 0.
        rows: Number of ids of each categorical feature.
        hots: How many ids of each feature a sample has; one each if None.
    """

    dense_features: int
    rows: tuple[int, ...]
    hots: tuple[int, ...] | None = None

    @property
    def features(self) -> int:
        """How many categorical features there are."""
        return len(self.rows)

    @property
    def pooled(self) -> bool:
        """Whether a feature may have several ids, which are then summed up."""
        return self.hots is not None and any(count != 1 for count in self.hots)

    @property
    def columns(self) -> tuple[int, ...]:
        """Offsets of each feature's ids, and the end of the last."""
        ends = [0]
        for count in self.hots or (1,) * len(self.rows):
            ends.append(ends[-1] + count)
        return tuple(ends)


@final
class Batch(NamedTuple):
    """Samples to learn from; the arrays belong to the caller."""

    dense: npt.NDArray[np.float32]
    """float32 [batch, dense features]."""
    ids: npt.NDArray[np.int64]
    """int64 [batch, ids of a sample]: the ids of the first feature, then those of the second."""
    labels: npt.NDArray[np.float32]
    """float32 [batch], 1 for a click and 0 for none."""
    best: npt.NDArray[np.float32] | None = None
    """float32 [batch], the true probability of a click, if known: the best any model can do."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self.labels)

    def part(self, begin: int, end: int) -> "Batch":
        """Return some of the samples, as views."""
        span = slice(begin, end)
        best = None if self.best is None else self.best[span]
        return Batch(self.dense[span], self.ids[span], self.labels[span], best)


def join_batches(parts: list[Batch]) -> Batch:
    """Return the samples of several batches as one; a single one is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    best = [part.best for part in parts if part.best is not None]
    return Batch(
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate(best) if len(best) == len(parts) else None,
    )


@final
class Columns(NamedTuple):
    """Samples before they are encoded."""

    labels: npt.NDArray[np.float32]
    """float32 [n]."""
    dense: npt.NDArray[np.float32]
    """float32 [n, dense features]; NaN is missing."""
    tokens: npt.NDArray[np.int64]
    """int64 [n, categorical features]; -2**63 is missing."""


@final
class BadLine(NamedTuple):
    """A line that does not hold a valid sample."""

    file: str
    line: int
    """From 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def without_bad(columns: Columns, file: str, first: int) -> tuple[Columns, list[BadLine]]:
    """Drop samples that are not valid; for files whose lines are not parsed.

    Args:
        columns: Labels must be 0 or 1, numbers finite or missing.
        file: What they come from.
        first: Line of the first one, from 1.
    """
    labelled = (columns.labels == 0) | (columns.labels == 1)
    finite = ~np.isinf(columns.dense).any(axis=1)
    fine = labelled & finite
    if fine.all():
        return columns, []
    bad = []
    for place in np.flatnonzero(~fine).tolist():
        number = int(np.isinf(columns.dense[place]).argmax())
        reason = f"number {number} is infinite" if labelled[place] else "the label is not 0 or 1"
        bad.append(BadLine(file, first + place, reason))
    return Columns(columns.labels[fine], columns.dense[fine], columns.tokens[fine]), bad


@final
class Block(NamedTuple):
    """What one block of a data set holds."""

    samples: Batch
    bad: tuple[BadLine, ...] = ()
    """Lines that were dropped."""


_log = logging.getLogger(__name__)

_SHOWN = 10


@final
class BadLines:
    """Bad lines that one trainer has read; a line counts once, however often it is read.

    Args:
        limit: Most that are tolerated.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: set[tuple[str, int]] = set()

    @property
    def count(self) -> int:
        """Number of distinct bad lines so far."""
        return len(self._met)

    def add(self, lines: Iterable[BadLine]) -> None:
        """Count lines, and log the first few.

        Raises:
            DataError: There are more than the limit; names the last one.
        """
        for line in lines:
            place = (line.file, line.line)
            if place in self._met:
                continue
            self._met.add(place)
            if len(self._met) > self._limit:
                raise DataError(
                    f"{line}; that is bad line number {len(self._met)} and data.max_bad_lines is"
                    f" {self._limit}: fix the file, or raise the limit"
                )
            if len(self._met) <= _SHOWN:
                _log.warning("bad line dropped", extra={"line": str(line)})
