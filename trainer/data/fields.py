"""Which features the samples of a data set have."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """The features of a sample.

    Args:
        dense_features: How many numbers come with it; may be none.
        rows: How many ids each categorical feature has.
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
        """Where the ids of each feature begin, and where the last ones end."""
        ends = [0]
        for count in self.hots or (1,) * len(self.rows):
            ends.append(ends[-1] + count)
        return tuple(ends)
