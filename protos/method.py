"""The rpcs of a service as data: path, types, codec and whether a call may be repeated."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gradmesh.protos import limits
from gradmesh.protos.frame import Frame, decode, encode, head_too_large, is_bulk, parse
from gradmesh.protos.rpcs import HOT, REPEATABLE

Body: TypeAlias = Message | Frame[Any]
"""What a call sends or receives: a frame where the message carries arrays, else the message."""


@dataclass(frozen=True, slots=True)
class Method:
    """One rpc.

    Args:
        service: Full name of the service.
        name: Name of the rpc, e.g. "Lookup".
        request_type: Class of the request.
        response_type: Class of the response.
        repeatable: Whether the call may be sent again when its outcome is unknown.

    Attributes:
        path: Path of the rpc in gRPC.
        number: Its number on lanes; 0 keeps it on gRPC.
        bulk: Whether its request and its response carry arrays.
    """

    service: str
    name: str
    request_type: type[Message]
    response_type: type[Message]
    repeatable: bool
    path: str = field(init=False)
    number: int = field(init=False)
    bulk: tuple[bool, bool] = field(init=False)

    def __post_init__(self) -> None:
        full = f"{self.service}/{self.name}"
        # Read at every call, so computed once.
        object.__setattr__(self, "path", f"/{full}")
        object.__setattr__(self, "number", HOT.get(full, 0))
        object.__setattr__(self, "bulk", (is_bulk(self.request_type), is_bulk(self.response_type)))

    @property
    def verb(self) -> str:
        """Name of the Python method that serves it."""
        return "".join("_" + c.lower() if c.isupper() else c for c in self.name).lstrip("_")


def methods_of(service: ServiceDescriptor) -> dict[str, Method]:
    """Return the service's rpcs by name."""
    return {method.name: _method(service.full_name, method) for method in service.methods}


def _method(service: str, method: MethodDescriptor) -> Method:
    return Method(
        service,
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        REPEATABLE[f"{service}/{method.name}"],
    )


def to_wire(body: Body, max_bytes: int) -> bytes:
    """Return the bytes of a request or response.

    Raises:
        InvalidRequest: An array cannot be sent, or the message exceeds a limit.
    """
    if isinstance(body, Frame):
        return encode(body, max_bytes)
    if (size := body.ByteSize()) > limits.MAX_HEAD_BYTES:
        raise head_too_large(size)
    return body.SerializeToString()


def from_wire(data: bytes, message_type: type[Message], max_bytes: int) -> Body:
    """Read a request or response.

    Raises:
        InvalidFrame: The bytes are not such a message.
    """
    if is_bulk(message_type):
        return decode(data, message_type, max_bytes)
    return parse(data, message_type)
