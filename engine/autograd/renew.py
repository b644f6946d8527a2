"""Change a tensor without changing it for graphs that were recorded with its old values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradmesh.engine.backend import Array


def renew(tensors: Iterable[Any]) -> None:
    """Give tensors memory of their own, with the same values, and a new count of changes.

    What follows may write to them in place: every graph recorded before keeps the memory that it
    saved, so its backward sees the values of its own forward and no InplaceError. An optimizer of
    parameters that several clients use does this before it steps, which makes them copy-on-write.

    Args:
        tensors: Leaves. Views of them that were made before keep looking at the old memory.
    """
    for tensor in tensors:
        replace_memory(tensor, tensor.data.copy())


def replace_memory(tensor: Any, data: Array) -> None:
    """Give a tensor other memory, and a count of changes as a new tensor has it."""
    tensor.data = data
    tensor.version = [0, 0]
