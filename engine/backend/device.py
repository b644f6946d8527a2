"""Devices: `cpu` and `cuda:i`, as values that compare and print."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gradmesh.engine.backend.errors import DeviceError


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Name a place where arrays live.

    Args:
        kind: `"cpu"` or `"cuda"`.
        index: Which GPU; always 0 on the CPU.
    """

    kind: str
    index: int = 0

    @property
    def type(self) -> str:
        """Name the kind, under torch's name for it."""
        return self.kind

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"


CPU = Device("cpu")


def as_device(value: str | Device | None) -> Device:
    """Read a device from `"cpu"`, `"cuda"`, `"cuda:1"`; None means the CPU.

    Raises:
        DeviceError: If the name is none of these.
    """
    if value is None:
        return CPU
    if isinstance(value, Device):
        return value
    kind, _, index = value.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise DeviceError(f"no such device: {value!r}; use 'cpu', 'cuda' or 'cuda:<index>'")
    if kind == "cpu":
        return CPU
    return Device(kind, int(index or 0))


def device_of(array: Any) -> Device:
    """Return the device that holds an array."""
    if isinstance(array, (np.ndarray, np.generic)):
        return CPU
    return Device("cuda", int(array.device.id))
