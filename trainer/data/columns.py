"""Samples as a file holds them: numbers that may be missing, tokens that are no ids yet."""

from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.data.batch import Batch


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
    """A line that is no sample."""

    file: str
    line: int
    """From 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def without_bad(columns: Columns, file: str, first: int) -> tuple[Columns, list[BadLine]]:
    """Leave out samples that nothing can be learned from; for files whose lines are not parsed.

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
    """Lines that were left out."""
