"""Clips the gradients of a context's map, which are arrays and not on the parameters."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def clipped(gradients: Mapping[Any, Any], max_norm: float) -> dict[Any, Any]:
    """Return gradients whose common norm is at most max_norm; what was given stays as it is.

    Computed as torch's clip_grad_norm_ does, in float64 and in the order of the parameters, so that
    ranks with equal gradients get equal results.

    Args:
        gradients: Arrays by parameter.
        max_norm: Largest norm; 0 for any.
    """
    if not max_norm:
        return dict(gradients)
    total = math.sqrt(sum(float(np.vdot(g, g)) for g in gradients.values()))
    if total + 1e-6 <= max_norm:
        return dict(gradients)
    factor = max_norm / (total + 1e-6)
    return {leaf: grad * grad.dtype.type(factor) for leaf, grad in gradients.items()}
