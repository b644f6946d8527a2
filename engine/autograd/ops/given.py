"""Arguments that users give as tensors, as arrays or as lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.backend import Array, DtypeError, device_of, to_device

# They say nothing of a device, so they go where the table is.
_PLAIN = (np.ndarray, np.generic, list, tuple, int)


def array_of(given: Any) -> Array:
    """Return the array of a tensor; an array as it is."""
    # An array's own `data` is its memory.
    return given.data if hasattr(given, "requires_grad") else given


def ids_of(name: str, given: Any, table: Any) -> Array:
    """Return ids or offsets as an array of integers.

    Args:
        name: Of the op and the argument, for the message.
        given: A tensor, array, list or number.
        table: What the ids are rows of.

    Raises:
        DtypeError: If they are no integers.
    """
    ids = array_of(given)
    if isinstance(ids, _PLAIN) and ids is given:
        ids = np.asarray(given)
        # numpy takes an empty list for floats.
        ids = ids if ids.size or hasattr(given, "dtype") else ids.astype(np.int64)
        ids = to_device(ids, device_of(array_of(table)))
    dtype = getattr(ids, "dtype", None)
    if dtype is None or dtype.kind not in "iu":
        raise DtypeError(f"{name} are integers, not {dtype or type(given).__name__}")
    return ids


def factors_of(given: Any, table: Any) -> Any:
    """Return factors: a tensor as it is, all else in the dtype and on the device of the table."""
    if not isinstance(given, _PLAIN):
        return given
    beside = array_of(table)
    return to_device(np.asarray(given, dtype=beside.dtype), device_of(beside))
