"""Counters of a table."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True)
class TableStats:
    """Totals since the table was made; a reset of its rows does not touch them.

    Attributes:
        lookups: Calls that read rows.
        ids: Ids looked up.
        asked: Ids that callers requested, repeated ones included.
        hits: Ids looked up that had a row.
        admitted: Rows made.
        refused: Uses of ids that were not admitted.
        dropped: Gradients without a row to change.
        staleness: Steps applied between lookup and gradient, summed over gradients.
        gradients: Gradients counted in `staleness`.
        stalest: The most steps between a lookup and its gradient.
    """

    lookups: int = 0
    ids: int = 0
    asked: int = 0
    hits: int = 0
    admitted: int = 0
    refused: int = 0
    dropped: int = 0
    staleness: int = 0
    gradients: int = 0
    stalest: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the ids looked up that had a row; 0 before the first lookup."""
        return self.hits / self.ids if self.ids else 0.0

    @property
    def unique_ratio(self) -> float:
        """Ids looked up by ids requested before deduplication."""
        return self.ids / self.asked if self.asked else 1.0

    def count_lookup(self, ids: int, missing: int) -> None:
        """Count one lookup."""
        self.lookups += 1
        self.ids += ids
        self.hits += ids - missing

    def count_staleness(self, steps: int) -> None:
        """Count the staleness of one gradient, in steps."""
        self.gradients += 1
        self.staleness += steps
        self.stalest = max(self.stalest, steps)
