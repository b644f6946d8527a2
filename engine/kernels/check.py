"""Checks of whole arrays in one pass, without temporary arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit

# Unsigned type of the same size, and the bits of an exponent that no finite number has.
_EXPONENTS = {
    "float16": (np.uint16, np.uint16(0x7C00)),
    "bfloat16": (np.uint16, np.uint16(0x7F80)),
    "float32": (np.uint32, np.uint32(0x7F800000)),
    "float64": (np.uint64, np.uint64(0x7FF0000000000000)),
}


# The above by dtype, whose name takes numpy longer than the check of a row.
_by_dtype: dict[Any, Any] = {}


@jit
def _any_has_all(bits: Any, mask: Any) -> Any:
    found = False
    # Without a way out: so the compiler makes vectors of it.
    for i in range(bits.shape[0]):
        found |= (bits[i] & mask) == mask
    return found


def all_finite(array: Any) -> bool:
    """Tell whether an array of floating-point numbers has no NaN and no infinity."""
    dtype = array.dtype
    known = _by_dtype.get(dtype)
    if known is None:
        known = _by_dtype[dtype] = _EXPONENTS.get(dtype.name) if dtype.isnative else None
    if known is None or not array.flags.c_contiguous:
        return bool(np.isfinite(array).all())
    return not _any_has_all(array.reshape(-1).view(known[0]), known[1])
