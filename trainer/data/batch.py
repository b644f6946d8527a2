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
    """int64 [batch, categorical features], each column within its table's rows."""
    labels: npt.NDArray[np.float32]
    """float32 [batch], 1 for a click and 0 for none."""
    best: npt.NDArray[np.float32]
    """float32 [batch], the true probability of a click, which no model can beat."""
