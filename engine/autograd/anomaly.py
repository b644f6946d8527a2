"""Anomaly detection: find the op that made the first NaN."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.backend import array_module
from gradmesh.engine.errors import AnomalyError


def check_forward(node: Any, result: Any) -> None:
    """Raise AnomalyError if the op's result holds a NaN."""
    for array in result if type(result) is tuple else (result,):
        if _has_nan(array):
            raise AnomalyError(f"forward of {node.name()} returned NaN")


def check_backward(node: Any, grads: Any) -> None:
    """Raise AnomalyError if a gradient that the op computed holds a NaN."""
    for place, grad in enumerate(grads):
        if grad is not None and _has_nan(getattr(grad, "rows", grad)):
            raise AnomalyError(f"backward of {node.name()} returned NaN for input {place}")


def _has_nan(array: Any) -> bool:
    if array.dtype.kind not in "fV":
        return False
    return bool(array_module(array).isnan(array).any())
