"""Reduced precision of rows and gradients on the wire.

Half precision rounds. int8 rounds each row to 255 steps between plus and minus its largest element;
the size of a step is sent beside the row, as float32.
"""

from collections.abc import Sequence

import numpy as np

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array

EXACT = array_pb2.ELEMENT_TYPE_UNSPECIFIED
"""Rows are sent in the dtype of their table."""

_INT8 = array_pb2.ELEMENT_TYPE_INT8
_NAMES = {
    "float16": array_pb2.ELEMENT_TYPE_FLOAT16,
    "bfloat16": array_pb2.ELEMENT_TYPE_BFLOAT16,
    "int8": _INT8,
}
_STEPS = np.float32(127)


def wire_number(name: str | None) -> array_pb2.ElementType:
    """Return the wire number of a precision; None is exact.

    Raises:
        InvalidRequest: There is no such precision.
    """
    if name is None:
        return EXACT
    if name not in _NAMES:
        allowed = ", ".join(_NAMES)
        raise InvalidRequest(f"no wire precision is called {name!r}; use one of {allowed}")
    return _NAMES[name]


def arrays_per_table(wire: int) -> int:
    """Return how many arrays carry the rows of one table.

    Raises:
        InvalidRequest: Rows cannot be sent in that dtype.
    """
    if wire != EXACT and wire not in _NAMES.values():
        raise InvalidRequest(f"rows cannot be sent as element type {wire}", element_type=wire)
    return 2 if wire == _INT8 else 1


def pack(rows: Array, wire: int) -> list[Array]:
    """Return rows [n, dim] packed for the wire: the rows, and for int8 their steps, float32 [n]."""
    arrays_per_table(wire)
    if wire == EXACT:
        return [rows]
    if wire != _INT8:
        with np.errstate(over="ignore"):  # becomes infinite, which the receiver refuses
            return [rows.astype(WIRE_TO_NUMPY[wire])]
    steps = np.abs(rows).max(axis=1, initial=0).astype(np.float32) / _STEPS
    scale = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0)
    return [np.rint(rows * scale[:, None]).astype(np.int8), steps]


def unpack(arrays: Sequence[Array], wire: int) -> Array:
    """Return the rows of arrays made by `pack`, as float32 unless the precision is exact.

    Raises:
        InvalidRequest: The arrays do not fit the precision.
    """
    if wire == EXACT:
        return arrays[0]
    rows = arrays[0]
    if rows.dtype != WIRE_TO_NUMPY[wire] or rows.ndim != 2:
        raise InvalidRequest(
            f"rows of {rows.dtype} {rows.shape}, not {WIRE_TO_NUMPY[wire]} [n, dim]"
        )
    wide: Array = rows.astype(np.float32)
    if wire == _INT8:
        steps = arrays[1]
        if steps.dtype != np.float32 or steps.shape != rows.shape[:1]:
            raise InvalidRequest(f"steps of {steps.dtype} {steps.shape} for rows {rows.shape}")
        wide *= steps[:, None]
    return wide


def unpack_all(arrays: Sequence[Array], wire: int) -> list[Array]:
    """Return the rows of several tables.

    Raises:
        InvalidRequest: The arrays do not fit the precision.
    """
    width = arrays_per_table(wire)
    if len(arrays) % width:
        raise InvalidRequest(f"{len(arrays)} arrays, though each table has {width}")
    return [unpack(arrays[at : at + width], wire) for at in range(0, len(arrays), width)]
