"""How exactly rows and gradients of a table travel, as a client chooses."""

from typing import Literal, NamedTuple, TypeAlias

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.precision import EXACT, wire_number

Precision: TypeAlias = Literal["float16", "bfloat16", "int8"]
"""A type of fewer bytes than float32; what it cannot hold is lost."""


class Wire(NamedTuple):
    """Element types on the wire; EXACT is the table's own."""

    rows: array_pb2.ElementType
    grads: array_pb2.ElementType


EXACTLY = Wire(EXACT, EXACT)
"""Nothing is lost."""


def wire_of(rows: Precision | None, grads: Precision | None) -> Wire:
    """Return the precision of rows and gradients.

    Raises:
        InvalidRequest: There is no such precision.
    """
    return Wire(wire_number(rows), wire_number(grads))
