"""Whether ops are recorded: a switch per thread, used as context manager or decorator."""

from __future__ import annotations

import contextlib
import threading


class _State(threading.local):
    """Hold the switches of one thread."""

    enabled: bool = True
    anomaly: bool = False


state = _State()


def is_grad_enabled() -> bool:
    """Tell whether this thread records ops."""
    return state.enabled


class set_grad_enabled(contextlib.ContextDecorator):  # noqa: N801 - torch's name
    """Record ops, or not, inside the block.

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
    """Record nothing inside the block."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(set_grad_enabled):  # noqa: N801 - torch's name
    """Record ops inside the block, also within `no_grad`."""

    def __init__(self) -> None:
        super().__init__(True)


class detect_anomaly(contextlib.ContextDecorator):  # noqa: N801 - torch's name
    """Name the op that makes the first NaN, forward or backward, inside the block."""

    def __enter__(self) -> None:
        self._before = state.anomaly
        state.anomaly = True

    def __exit__(self, *exc: object) -> None:
        state.anomaly = self._before
