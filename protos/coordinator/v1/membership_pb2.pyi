from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PARAMETER_SERVER: _ClassVar[Role]
    ROLE_TRAINER: _ClassVar[Role]
    ROLE_CLIENT: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_PARAMETER_SERVER: Role
ROLE_TRAINER: Role
ROLE_CLIENT: Role
ROLE_WORKER: Role

class Member(_message.Message):
    __slots__ = ("name", "role", "address", "incarnation", "rank", "world_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: Role
    address: str
    incarnation: int
    rank: int
    world_size: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("member", "protocol", "replace", "session")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    member: Member
    protocol: str
    replace: bool
    session: bytes
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., protocol: _Optional[str] = ..., replace: bool = ..., session: _Optional[bytes] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("lease_s", "generation", "time_ms", "authenticates")
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATES_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    generation: int
    time_ms: int
    authenticates: bool
    def __init__(self, lease_s: _Optional[float] = ..., generation: _Optional[int] = ..., time_ms: _Optional[int] = ..., authenticates: bool = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("name", "incarnation", "open_contexts", "context_openers", "context_counts", "wait_s", "generation", "shard_epoch", "checkpoint_request", "reshard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OPEN_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_OPENERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    open_contexts: int
    context_openers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerId]
    context_counts: _containers.RepeatedScalarFieldContainer[int]
    wait_s: float
    generation: int
    shard_epoch: int
    checkpoint_request: int
    reshard: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., open_contexts: _Optional[int] = ..., context_openers: _Optional[_Iterable[_Union[_worker_pb2.WorkerId, _Mapping]]] = ..., context_counts: _Optional[_Iterable[int]] = ..., wait_s: _Optional[float] = ..., generation: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., checkpoint_request: _Optional[int] = ..., reshard: _Optional[int] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("lease_s", "generation", "shard_epoch", "gone", "checkpoint_request", "reshard", "time_ms")
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    generation: int
    shard_epoch: int
    gone: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerId]
    checkpoint_request: int
    reshard: int
    time_ms: int
    def __init__(self, lease_s: _Optional[float] = ..., generation: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., gone: _Optional[_Iterable[_Union[_worker_pb2.WorkerId, _Mapping]]] = ..., checkpoint_request: _Optional[int] = ..., reshard: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
