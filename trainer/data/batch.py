"""One batch of click data."""

from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt


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
    """float32 [batch], the true probability of a click, which no model can beat; if known."""

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
