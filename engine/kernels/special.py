"""Functions that numpy lacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit


@jit
def _erf(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = math.erf(x[i])


def erf(x: Any) -> Any:
    """Return the error function of each element."""
    if not isinstance(x, (np.ndarray, np.generic)):
        from gradmesh.engine.backend.cuda import special_module

        return special_module().erf(x)
    wide = np.ascontiguousarray(x, dtype=np.float64 if x.dtype == np.float64 else np.float32)
    out = np.empty(x.size, dtype=wide.dtype)
    _erf(wide.reshape(-1), out)
    return out.reshape(x.shape).astype(x.dtype, copy=False)
