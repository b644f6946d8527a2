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


@final
class Block(NamedTuple):
    """What one block of a data set holds."""

    samples: Batch
    bad: tuple[BadLine, ...] = ()
    """Lines that were left out."""
