"""Counts lines that are no samples, and says when there are too many."""

import logging
from collections.abc import Iterable
from typing import final

from gradmesh.trainer.data.columns import BadLine
from gradmesh.trainer.errors import DataError

_log = logging.getLogger(__name__)

_SHOWN = 10


@final
class BadLines:
    """The bad lines that one trainer has met; a line counts once, however often it is read.

    Args:
        limit: How many are borne.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: set[tuple[str, int]] = set()

    @property
    def count(self) -> int:
        """How many there were."""
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
                    f" {self._limit}: mend the file, or raise the limit"
                )
            if len(self._met) <= _SHOWN:
                _log.warning("bad line left out", extra={"line": str(line)})
