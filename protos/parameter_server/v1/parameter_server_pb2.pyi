from gradmesh.protos.common.v1 import array_pb2 as _array_pb2
from gradmesh.protos.common.v1 import context_pb2 as _context_pb2
from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from gradmesh.protos.coordinator.v1 import table_pb2 as _table_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartRunRequest(_message.Message):
    __slots__ = ("generation", "world_size", "tables", "origin", "steps", "keep_rows", "staleness")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_ROWS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    world_size: int
    tables: _containers.RepeatedScalarFieldContainer[str]
    origin: int
    steps: int
    keep_rows: bool
    staleness: int
    def __init__(self, generation: _Optional[int] = ..., world_size: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ..., origin: _Optional[int] = ..., steps: _Optional[int] = ..., keep_rows: bool = ..., staleness: _Optional[int] = ...) -> None: ...

class StartRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InspectRunRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class InspectRunResponse(_message.Message):
    __slots__ = ("origin", "generation", "applied_steps", "prepared_steps")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEPS_FIELD_NUMBER: _ClassVar[int]
    PREPARED_STEPS_FIELD_NUMBER: _ClassVar[int]
    origin: int
    generation: int
    applied_steps: int
    prepared_steps: int
    def __init__(self, origin: _Optional[int] = ..., generation: _Optional[int] = ..., applied_steps: _Optional[int] = ..., prepared_steps: _Optional[int] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("context", "lookup", "mark", "shard_epoch", "tables", "wire_rows", "ahead", "asked", "arrays")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    WIRE_ROWS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    lookup: int
    mark: _context_pb2.StepMark
    shard_epoch: int
    tables: _containers.RepeatedScalarFieldContainer[str]
    wire_rows: _array_pb2.ElementType
    ahead: bool
    asked: _containers.RepeatedScalarFieldContainer[int]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., lookup: _Optional[int] = ..., mark: _Optional[_Union[_context_pb2.StepMark, _Mapping]] = ..., shard_epoch: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ..., wire_rows: _Optional[_Union[_array_pb2.ElementType, str]] = ..., ahead: bool = ..., asked: _Optional[_Iterable[int]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("arrays",)
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class RefreshRequest(_message.Message):
    __slots__ = ("ahead_context", "ahead_lookup", "context", "lookup", "mark", "shard_epoch", "peek", "since")
    AHEAD_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    AHEAD_LOOKUP_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ahead_context: _context_pb2.ContextId
    ahead_lookup: int
    context: _context_pb2.ContextId
    lookup: int
    mark: _context_pb2.StepMark
    shard_epoch: int
    peek: bool
    since: int
    def __init__(self, ahead_context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., ahead_lookup: _Optional[int] = ..., context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., lookup: _Optional[int] = ..., mark: _Optional[_Union[_context_pb2.StepMark, _Mapping]] = ..., shard_epoch: _Optional[int] = ..., peek: bool = ..., since: _Optional[int] = ...) -> None: ...

class RefreshResponse(_message.Message):
    __slots__ = ("count", "arrays")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    count: int
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, count: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class BackwardRequest(_message.Message):
    __slots__ = ("context", "lookup", "wire_grads", "pass_number", "arrays")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    WIRE_GRADS_FIELD_NUMBER: _ClassVar[int]
    PASS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    lookup: int
    wire_grads: _array_pb2.ElementType
    pass_number: int
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., lookup: _Optional[int] = ..., wire_grads: _Optional[_Union[_array_pb2.ElementType, str]] = ..., pass_number: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class BackwardResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("context", "mark", "returned", "failed_passes")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    FAILED_PASSES_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    mark: _context_pb2.StepMark
    returned: int
    failed_passes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., mark: _Optional[_Union[_context_pb2.StepMark, _Mapping]] = ..., returned: _Optional[int] = ..., failed_passes: _Optional[_Iterable[int]] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("applied_steps",)
    APPLIED_STEPS_FIELD_NUMBER: _ClassVar[int]
    applied_steps: int
    def __init__(self, applied_steps: _Optional[int] = ...) -> None: ...

class CommitStepRequest(_message.Message):
    __slots__ = ("mark",)
    MARK_FIELD_NUMBER: _ClassVar[int]
    mark: _context_pb2.StepMark
    def __init__(self, mark: _Optional[_Union[_context_pb2.StepMark, _Mapping]] = ...) -> None: ...

class CommitStepResponse(_message.Message):
    __slots__ = ("applied_steps",)
    APPLIED_STEPS_FIELD_NUMBER: _ClassVar[int]
    applied_steps: int
    def __init__(self, applied_steps: _Optional[int] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "sequence", "shard_epoch", "tables", "wire_grads", "arrays")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    WIRE_GRADS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    sequence: int
    shard_epoch: int
    tables: _containers.RepeatedScalarFieldContainer[str]
    wire_grads: _array_pb2.ElementType
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ..., wire_grads: _Optional[_Union[_array_pb2.ElementType, str]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class PushResponse(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    def __init__(self, applied: bool = ...) -> None: ...

class InspectTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class InspectTableResponse(_message.Message):
    __slots__ = ("spec", "rows", "bytes", "steps", "expected_row_bytes", "actual_row_bytes", "file_bytes", "lookups", "ids", "hit_rate", "admitted", "refused", "evicted", "dropped", "staleness")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    spec: _table_pb2.TableSpec
    rows: int
    bytes: int
    steps: int
    expected_row_bytes: float
    actual_row_bytes: float
    file_bytes: int
    lookups: int
    ids: int
    hit_rate: float
    admitted: int
    refused: int
    evicted: int
    dropped: int
    staleness: float
    def __init__(self, spec: _Optional[_Union[_table_pb2.TableSpec, _Mapping]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., steps: _Optional[int] = ..., expected_row_bytes: _Optional[float] = ..., actual_row_bytes: _Optional[float] = ..., file_bytes: _Optional[int] = ..., lookups: _Optional[int] = ..., ids: _Optional[int] = ..., hit_rate: _Optional[float] = ..., admitted: _Optional[int] = ..., refused: _Optional[int] = ..., evicted: _Optional[int] = ..., dropped: _Optional[int] = ..., staleness: _Optional[float] = ...) -> None: ...

class BeginSnapshotRequest(_message.Message):
    __slots__ = ("snapshot", "tables", "step", "base", "shard_epoch", "owner")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    step: int
    base: str
    shard_epoch: int
    owner: _worker_pb2.WorkerId
    def __init__(self, snapshot: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., base: _Optional[str] = ..., shard_epoch: _Optional[int] = ..., owner: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ...) -> None: ...

class BeginSnapshotResponse(_message.Message):
    __slots__ = ("frozen", "generation", "applied_steps", "tables", "open_contexts")
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEPS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    OPEN_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    frozen: bool
    generation: int
    applied_steps: int
    tables: _containers.RepeatedCompositeFieldContainer[FrozenTable]
    open_contexts: int
    def __init__(self, frozen: bool = ..., generation: _Optional[int] = ..., applied_steps: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[FrozenTable, _Mapping]]] = ..., open_contexts: _Optional[int] = ...) -> None: ...

class FrozenTable(_message.Message):
    __slots__ = ("name", "steps", "rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    steps: int
    rows: int
    def __init__(self, name: _Optional[str] = ..., steps: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class ReadSnapshotRequest(_message.Message):
    __slots__ = ("snapshot", "table", "cursor", "max_bytes")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    table: str
    cursor: int
    max_bytes: int
    def __init__(self, snapshot: _Optional[str] = ..., table: _Optional[str] = ..., cursor: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadSnapshotResponse(_message.Message):
    __slots__ = ("next_cursor", "names", "arrays")
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    next_cursor: int
    names: _containers.RepeatedScalarFieldContainer[str]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, next_cursor: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class EndSnapshotRequest(_message.Message):
    __slots__ = ("snapshot", "stored")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    stored: bool
    def __init__(self, snapshot: _Optional[str] = ..., stored: bool = ...) -> None: ...

class EndSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginRestoreRequest(_message.Message):
    __slots__ = ("restore", "tables")
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    restore: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, restore: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class BeginRestoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadRowsRequest(_message.Message):
    __slots__ = ("restore", "table", "shard_epoch", "names", "arrays")
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    restore: str
    table: str
    shard_epoch: int
    names: _containers.RepeatedScalarFieldContainer[str]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, restore: _Optional[str] = ..., table: _Optional[str] = ..., shard_epoch: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class LoadRowsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndRestoreRequest(_message.Message):
    __slots__ = ("restore", "steps")
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    restore: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, restore: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ...) -> None: ...

class EndRestoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StageRowsRequest(_message.Message):
    __slots__ = ("reshard", "table", "names", "arrays")
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    reshard: int
    table: str
    names: _containers.RepeatedScalarFieldContainer[str]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, reshard: _Optional[int] = ..., table: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class StageRowsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StageMarksRequest(_message.Message):
    __slots__ = ("reshard", "source", "run", "tables", "pushes")
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    reshard: int
    source: str
    run: HeldRun
    tables: _containers.RepeatedCompositeFieldContainer[FrozenTable]
    pushes: _containers.RepeatedCompositeFieldContainer[WorkerMarks]
    def __init__(self, reshard: _Optional[int] = ..., source: _Optional[str] = ..., run: _Optional[_Union[HeldRun, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[FrozenTable, _Mapping]]] = ..., pushes: _Optional[_Iterable[_Union[WorkerMarks, _Mapping]]] = ...) -> None: ...

class StageMarksResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeldRun(_message.Message):
    __slots__ = ("origin", "generation", "world_size", "steps", "staleness", "own_steps")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    OWN_STEPS_FIELD_NUMBER: _ClassVar[int]
    origin: int
    generation: int
    world_size: int
    steps: int
    staleness: int
    own_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, origin: _Optional[int] = ..., generation: _Optional[int] = ..., world_size: _Optional[int] = ..., steps: _Optional[int] = ..., staleness: _Optional[int] = ..., own_steps: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerMarks(_message.Message):
    __slots__ = ("worker", "incarnation", "floor", "numbers")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    floor: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., floor: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...
