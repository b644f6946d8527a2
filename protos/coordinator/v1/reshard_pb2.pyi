from gradmesh.protos.coordinator.v1 import table_pb2 as _table_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReshardPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESHARD_PHASE_UNSPECIFIED: _ClassVar[ReshardPhase]
    RESHARD_PHASE_WAITING: _ClassVar[ReshardPhase]
    RESHARD_PHASE_COPYING: _ClassVar[ReshardPhase]
    RESHARD_PHASE_STOPPING: _ClassVar[ReshardPhase]
    RESHARD_PHASE_DRAINING: _ClassVar[ReshardPhase]
    RESHARD_PHASE_SENDING: _ClassVar[ReshardPhase]
    RESHARD_PHASE_ADOPTING: _ClassVar[ReshardPhase]
    RESHARD_PHASE_DONE: _ClassVar[ReshardPhase]
    RESHARD_PHASE_ABORTED: _ClassVar[ReshardPhase]
RESHARD_PHASE_UNSPECIFIED: ReshardPhase
RESHARD_PHASE_WAITING: ReshardPhase
RESHARD_PHASE_COPYING: ReshardPhase
RESHARD_PHASE_STOPPING: ReshardPhase
RESHARD_PHASE_DRAINING: ReshardPhase
RESHARD_PHASE_SENDING: ReshardPhase
RESHARD_PHASE_ADOPTING: ReshardPhase
RESHARD_PHASE_DONE: ReshardPhase
RESHARD_PHASE_ABORTED: ReshardPhase

class Reshard(_message.Message):
    __slots__ = ("number", "phase", "parameter_servers", "map", "step", "buckets", "buckets_moved", "error", "version")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_MOVED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    number: int
    phase: ReshardPhase
    parameter_servers: int
    map: _table_pb2.ShardMap
    step: int
    buckets: int
    buckets_moved: int
    error: str
    version: int
    def __init__(self, number: _Optional[int] = ..., phase: _Optional[_Union[ReshardPhase, str]] = ..., parameter_servers: _Optional[int] = ..., map: _Optional[_Union[_table_pb2.ShardMap, _Mapping]] = ..., step: _Optional[int] = ..., buckets: _Optional[int] = ..., buckets_moved: _Optional[int] = ..., error: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ScaleParameterServersRequest(_message.Message):
    __slots__ = ("parameter_servers", "wait_s")
    PARAMETER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    parameter_servers: int
    wait_s: float
    def __init__(self, parameter_servers: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ScaleParameterServersResponse(_message.Message):
    __slots__ = ("reshard",)
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    reshard: Reshard
    def __init__(self, reshard: _Optional[_Union[Reshard, _Mapping]] = ...) -> None: ...

class GetReshardRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReshardResponse(_message.Message):
    __slots__ = ("reshard",)
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    reshard: Reshard
    def __init__(self, reshard: _Optional[_Union[Reshard, _Mapping]] = ...) -> None: ...

class ReportMoveRequest(_message.Message):
    __slots__ = ("name", "incarnation", "reshard", "done", "begun_steps", "origin", "generation", "buckets_moved", "error", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_STEPS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_MOVED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    reshard: int
    done: ReshardPhase
    begun_steps: int
    origin: int
    generation: int
    buckets_moved: int
    error: str
    version: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., reshard: _Optional[int] = ..., done: _Optional[_Union[ReshardPhase, str]] = ..., begun_steps: _Optional[int] = ..., origin: _Optional[int] = ..., generation: _Optional[int] = ..., buckets_moved: _Optional[int] = ..., error: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ReportMoveResponse(_message.Message):
    __slots__ = ("reshard",)
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    reshard: Reshard
    def __init__(self, reshard: _Optional[_Union[Reshard, _Mapping]] = ...) -> None: ...
