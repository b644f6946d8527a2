"""gm and gm.ops as one namespace, so that a test calls the same expression on torch."""

from typing import Any

import numpy as np

import gradmesh as gm


class _Functions:
    def __getattr__(self, name: str) -> Any:
        if name in ("bool", "int8", "int16", "int32", "uint8"):
            return np.dtype(name)
        return getattr(gm, name) if name in gm.__all__ else getattr(gm.ops, name)


FUNCTIONS: Any = _Functions()
