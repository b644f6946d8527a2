"""Per-thread modes: whether ops are recorded, and whether they are checked for NaN."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from gradmesh.engine.backend import array_module
from gradmesh.engine.errors import AnomalyError


class _State(threading.local):
    """Hold the switches of one thread."""

    enabled: bool = True
    anomaly: bool = False


state = _State()


def is_grad_enabled() -> bool:
    """Return whether this thread records ops for gradients."""
    return state.enabled


class set_grad_enabled(contextlib.ContextDecorator):  # noqa: N801 - torch's name
    """Enable or disable the recording of gradients inside the block.

    Args:
        mode: Whether to record.
    """

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(state.enabled)
        state.enabled = self.mode

    def __exit__(self, *exc: object) -> None:
        state.enabled = self._before.pop()


class no_grad(set_grad_enabled):  # noqa: N801 - torch's name
    """Disable the recording of gradients inside the block."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(set_grad_enabled):  # noqa: N801 - torch's name
    """Enable the recording of gradients inside the block, also within `no_grad`."""

    def __init__(self) -> None:
        super().__init__(True)


class detect_anomaly(contextlib.ContextDecorator):  # noqa: N801 - torch's name
    """Raise AnomalyError at the op that computes the first NaN inside the block."""

    def __enter__(self) -> None:
        self._before = state.anomaly
        state.anomaly = True

    def __exit__(self, *exc: object) -> None:
        state.anomaly = self._before


def check_forward(node: Any, result: Any) -> None:
    """Raise AnomalyError if the op's result holds a NaN."""
    for array in result if type(result) is tuple else (result,):
        if _has_nan(array):
            raise AnomalyError(f"forward of {node.name()} returned NaN")


def check_backward(node: Any, grads: Any) -> None:
    """Raise AnomalyError if a gradient that the op computed holds a NaN."""
    for position, grad in enumerate(grads):
        if grad is not None and _has_nan(getattr(grad, "rows", grad)):
            raise AnomalyError(f"backward of {node.name()} returned NaN for input {position}")


def _has_nan(array: Any) -> bool:
    if array.dtype.kind not in "fV":
        return False
    return bool(array_module(array).isnan(array).any())
