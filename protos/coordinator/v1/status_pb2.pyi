from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2 as _membership_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Progress(_message.Message):
    __slots__ = ("generation", "step", "total_steps", "loss", "samples_per_s", "bytes_moved")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    total_steps: int
    loss: float
    samples_per_s: float
    bytes_moved: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., loss: _Optional[float] = ..., samples_per_s: _Optional[float] = ..., bytes_moved: _Optional[int] = ...) -> None: ...

class ReportProgressRequest(_message.Message):
    __slots__ = ("name", "incarnation", "progress")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    progress: Progress
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class ReportProgressResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportResultRequest(_message.Message):
    __slots__ = ("generation", "figures", "job")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    generation: int
    figures: _containers.ScalarMap[str, float]
    job: str
    def __init__(self, generation: _Optional[int] = ..., figures: _Optional[_Mapping[str, float]] = ..., job: _Optional[str] = ...) -> None: ...

class ReportResultResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "uptime_s", "generation", "shard_epoch", "members", "tables", "result", "result_generation", "checkpoint", "warnings", "next_page_token")
    class ResultEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime_s: float
    generation: int
    shard_epoch: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    tables: _containers.RepeatedScalarFieldContainer[str]
    result: _containers.ScalarMap[str, float]
    result_generation: int
    checkpoint: Checkpoint
    warnings: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., generation: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., tables: _Optional[_Iterable[str]] = ..., result: _Optional[_Mapping[str, float]] = ..., result_generation: _Optional[int] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("path", "step", "rows", "bytes", "took_s", "request", "error", "age_s")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    path: str
    step: int
    rows: int
    bytes: int
    took_s: float
    request: int
    error: str
    age_s: float
    def __init__(self, path: _Optional[str] = ..., step: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., took_s: _Optional[float] = ..., request: _Optional[int] = ..., error: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class RequestCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestCheckpointResponse(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class ReportCheckpointRequest(_message.Message):
    __slots__ = ("name", "incarnation", "checkpoint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    checkpoint: Checkpoint
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class ReportCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("member", "silence_s", "progress", "open_contexts", "contexts")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OPEN_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    member: _membership_pb2.Member
    silence_s: float
    progress: Progress
    open_contexts: int
    contexts: _containers.RepeatedCompositeFieldContainer[OpenContexts]
    def __init__(self, member: _Optional[_Union[_membership_pb2.Member, _Mapping]] = ..., silence_s: _Optional[float] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., open_contexts: _Optional[int] = ..., contexts: _Optional[_Iterable[_Union[OpenContexts, _Mapping]]] = ...) -> None: ...

class OpenContexts(_message.Message):
    __slots__ = ("opener", "count")
    OPENER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    opener: _worker_pb2.WorkerId
    count: int
    def __init__(self, opener: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...
