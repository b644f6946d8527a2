from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TicketClaims(_message.Message):
    __slots__ = ("audience", "role", "caller", "member_role", "expires_ms")
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ROLE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    audience: _worker_pb2.WorkerId
    role: str
    caller: _worker_pb2.WorkerId
    member_role: str
    expires_ms: int
    def __init__(self, audience: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., role: _Optional[str] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., member_role: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class IssueTicketsRequest(_message.Message):
    __slots__ = ("audiences",)
    AUDIENCES_FIELD_NUMBER: _ClassVar[int]
    audiences: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, audiences: _Optional[_Iterable[str]] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("data", "ttl_s")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    ttl_s: float
    def __init__(self, data: _Optional[bytes] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class IssueTicketsResponse(_message.Message):
    __slots__ = ("tickets", "is_open")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[Ticket]
    is_open: bool
    def __init__(self, tickets: _Optional[_Iterable[_Union[Ticket, _Mapping]]] = ..., is_open: bool = ...) -> None: ...

class CheckWorkersRequest(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerId]
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerId, _Mapping]]] = ...) -> None: ...

class CheckWorkersResponse(_message.Message):
    __slots__ = ("registered",)
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    registered: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, registered: _Optional[_Iterable[bool]] = ...) -> None: ...
