"""Tables on the wire: the precision of rows and gradients, and serialized requests."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, final

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.frame import Serialized
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import EXACT, wire_number
from gradmesh.protos.wireformat import LENGTH, VARINT, varint

Precision: TypeAlias = Literal["float16", "bfloat16", "int8"]
"""A type of fewer bytes than float32; values are rounded to it."""


class Wire(NamedTuple):
    """Element types on the wire; EXACT is the table's own."""

    rows: array_pb2.ElementType
    grads: array_pb2.ElementType


LOSSLESS = Wire(EXACT, EXACT)
"""Rows and gradients are sent in the table's own type."""


def wire_of(rows: Precision | None, grads: Precision | None) -> Wire:
    """Return the precision of rows and gradients.

    Raises:
        InvalidRequest: It is unknown.
    """
    return Wire(wire_number(rows), wire_number(grads))


# Subsets of the tables that servers were asked for; in practice all of them, or a few.
_MAX_KEPT = 64
_ASKED = bytes([pb.LookupRequest.DESCRIPTOR.fields_by_name["asked"].number << 3 | LENGTH])
_SEQUENCE = bytes([pb.PushRequest.DESCRIPTOR.fields_by_name["sequence"].number << 3 | VARINT])


@final
class RequestHeads:
    """The parts of requests that repeat from call to call, serialized once for a set of tables.

    Protobuf messages that are written one after the other are one message, so the fields that
    change are appended: a lookup of one row does not pay for building and serializing its request.

    Args:
        names: Of the tables.
        wire: Precision on the wire.
    """

    def __init__(self, names: Sequence[str], wire: Wire) -> None:
        self._names = names
        self._wire = wire
        self._lookups: dict[tuple[int, ...], Serialized] = {}
        self._push: tuple[tuple[int, str, int], bytes] | None = None

    def lookup(self, epoch: int, *tables: int) -> Serialized:
        """Return a request for rows of some tables, by their index, outside any context."""
        key = (epoch, *tables)
        head = self._lookups.get(key)
        if head is None:
            message = pb.LookupRequest(
                shard_epoch=epoch,
                tables=[self._names[table] for table in tables],
                wire_rows=self._wire.rows,
            )
            if len(self._lookups) >= _MAX_KEPT:
                self._lookups.clear()
            head = self._lookups[key] = Serialized(message.SerializeToString())
        return head

    def push(self, epoch: int, worker: str, incarnation: int, sequence: int) -> Serialized:
        """Return a push of gradients of all tables."""
        key = (epoch, worker, incarnation)
        held = self._push
        if held is None or held[0] != key:
            message = pb.PushRequest(
                worker=worker,
                incarnation=incarnation,
                shard_epoch=epoch,
                tables=self._names,
                wire_grads=self._wire.grads,
            )
            held = self._push = (key, message.SerializeToString())
        return Serialized(b"".join((held[1], _SEQUENCE, varint(sequence))))


def asked_field(counts: Sequence[int]) -> bytes:
    """Return the field with the number of wanted ids of each table, repeated ones included."""
    packed = b"".join(map(varint, counts))
    return b"".join((_ASKED, varint(len(packed)), packed))
