"""What deep models begin with: the numbers and all rows of a sample, side by side."""

from typing import Any

from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import cat


def side_by_side(dense: Any, rows: Tensor) -> Tensor:
    """Return float32 [batch, dense features + features * dim]."""
    flat: Tensor = rows.reshape(rows.shape[0], -1)
    numbers = as_tensor(dense)
    if not numbers.shape[1]:
        return flat
    joined: Tensor = cat([numbers, flat], 1)
    return joined
