"""Find and map tensors nested in lists, tuples, dicts, dataclasses and local RRefs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from gradmesh.engine.autograd import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value; values of other types are opaque."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif _is_own_rref(value):
        yield from tensors_in(value.local_value())


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a nested value with every tensor mapped; other values are returned as is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return type(value)((key, map_tensors(item, change)) for key, item in value.items())
    return value


def _is_own_rref(value: Any) -> bool:
    is_owner = getattr(value, "is_owner", None)
    return callable(is_owner) and hasattr(value, "local_value") and bool(is_owner())
