from gradmesh.protos.common.v1 import array_pb2 as _array_pb2
from gradmesh.protos.common.v1 import context_pb2 as _context_pb2
from gradmesh.protos.common.v1 import value_pb2 as _value_pb2
from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from gradmesh.protos.owner.v1 import owner_pb2 as _owner_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_PHASE_UNSPECIFIED: _ClassVar[StepPhase]
    STEP_PHASE_PREPARE: _ClassVar[StepPhase]
    STEP_PHASE_COMMIT: _ClassVar[StepPhase]
    STEP_PHASE_ABANDON: _ClassVar[StepPhase]
    STEP_PHASE_APPLY: _ClassVar[StepPhase]
    STEP_PHASE_LOOK: _ClassVar[StepPhase]

class PassMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PASS_MODE_UNSPECIFIED: _ClassVar[PassMode]
    PASS_MODE_SMART: _ClassVar[PassMode]
    PASS_MODE_FAST: _ClassVar[PassMode]

class GradientKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADIENT_KIND_UNSPECIFIED: _ClassVar[GradientKind]
    GRADIENT_KIND_DENSE: _ClassVar[GradientKind]
    GRADIENT_KIND_ROWS: _ClassVar[GradientKind]
STEP_PHASE_UNSPECIFIED: StepPhase
STEP_PHASE_PREPARE: StepPhase
STEP_PHASE_COMMIT: StepPhase
STEP_PHASE_ABANDON: StepPhase
STEP_PHASE_APPLY: StepPhase
STEP_PHASE_LOOK: StepPhase
PASS_MODE_UNSPECIFIED: PassMode
PASS_MODE_SMART: PassMode
PASS_MODE_FAST: PassMode
GRADIENT_KIND_UNSPECIFIED: GradientKind
GRADIENT_KIND_DENSE: GradientKind
GRADIENT_KIND_ROWS: GradientKind

class Pass(_message.Message):
    __slots__ = ("context", "initiator", "number", "mode", "retain_graph", "remaining_ms", "failed")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    INITIATOR_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RETAIN_GRAPH_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    initiator: _worker_pb2.WorkerId
    number: int
    mode: PassMode
    retain_graph: bool
    remaining_ms: int
    failed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., initiator: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., number: _Optional[int] = ..., mode: _Optional[_Union[PassMode, str]] = ..., retain_graph: bool = ..., remaining_ms: _Optional[int] = ..., failed: _Optional[_Iterable[int]] = ...) -> None: ...

class Sends(_message.Message):
    __slots__ = ("worker", "messages")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerId
    messages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., messages: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("sends",)
    SENDS_FIELD_NUMBER: _ClassVar[int]
    sends: _containers.RepeatedCompositeFieldContainer[Sends]
    def __init__(self, sends: _Optional[_Iterable[_Union[Sends, _Mapping]]] = ...) -> None: ...

class Gradient(_message.Message):
    __slots__ = ("kind", "num_rows", "coalesced")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    kind: GradientKind
    num_rows: int
    coalesced: bool
    def __init__(self, kind: _Optional[_Union[GradientKind, str]] = ..., num_rows: _Optional[int] = ..., coalesced: bool = ...) -> None: ...

class FinishedPart(_message.Message):
    __slots__ = ("worker", "engaged")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGAGED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    engaged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[str] = ..., engaged: _Optional[_Iterable[str]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("worker", "reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    worker: str
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, worker: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SendGradientsRequest(_message.Message):
    __slots__ = ("backward_pass", "message", "incarnation", "plan", "gradients", "finished", "arrays")
    BACKWARD_PASS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    backward_pass: Pass
    message: int
    incarnation: int
    plan: Plan
    gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    finished: _containers.RepeatedCompositeFieldContainer[FinishedPart]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, backward_pass: _Optional[_Union[Pass, _Mapping]] = ..., message: _Optional[int] = ..., incarnation: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[FinishedPart, _Mapping]]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class ReturnedGradients(_message.Message):
    __slots__ = ("message", "gradients")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    message: int
    gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    def __init__(self, message: _Optional[int] = ..., gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ...) -> None: ...

class SendGradientsResponse(_message.Message):
    __slots__ = ("finished", "returned", "arrays")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    finished: _containers.RepeatedCompositeFieldContainer[FinishedPart]
    returned: _containers.RepeatedCompositeFieldContainer[ReturnedGradients]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, finished: _Optional[_Iterable[_Union[FinishedPart, _Mapping]]] = ..., returned: _Optional[_Iterable[_Union[ReturnedGradients, _Mapping]]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class ReportPartsRequest(_message.Message):
    __slots__ = ("backward_pass", "finished", "failure")
    BACKWARD_PASS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    backward_pass: Pass
    finished: _containers.RepeatedCompositeFieldContainer[FinishedPart]
    failure: Failure
    def __init__(self, backward_pass: _Optional[_Union[Pass, _Mapping]] = ..., finished: _Optional[_Iterable[_Union[FinishedPart, _Mapping]]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ReportPartsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortPassRequest(_message.Message):
    __slots__ = ("backward_pass", "failure")
    BACKWARD_PASS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    backward_pass: Pass
    failure: Failure
    def __init__(self, backward_pass: _Optional[_Union[Pass, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class AbortPassResponse(_message.Message):
    __slots__ = ("waiting",)
    WAITING_FIELD_NUMBER: _ClassVar[int]
    waiting: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, waiting: _Optional[_Iterable[str]] = ...) -> None: ...

class ProbePassRequest(_message.Message):
    __slots__ = ("backward_pass",)
    BACKWARD_PASS_FIELD_NUMBER: _ClassVar[int]
    backward_pass: Pass
    def __init__(self, backward_pass: _Optional[_Union[Pass, _Mapping]] = ...) -> None: ...

class ProbePassResponse(_message.Message):
    __slots__ = ("incarnation", "finished", "engaged")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ENGAGED_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    finished: _containers.RepeatedCompositeFieldContainer[FinishedPart]
    engaged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, incarnation: _Optional[int] = ..., finished: _Optional[_Iterable[_Union[FinishedPart, _Mapping]]] = ..., engaged: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupOptions(_message.Message):
    __slots__ = ("options",)
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _value_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ...) -> None: ...
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.MessageMap[str, _value_pb2.Value]
    def __init__(self, options: _Optional[_Mapping[str, _value_pb2.Value]] = ...) -> None: ...

class StepParametersRequest(_message.Message):
    __slots__ = ("optimizer", "number", "phase", "context", "groups")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    optimizer: _value_pb2.RemoteRef
    number: int
    phase: StepPhase
    context: _context_pb2.ContextId
    groups: _containers.RepeatedCompositeFieldContainer[GroupOptions]
    def __init__(self, optimizer: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., number: _Optional[int] = ..., phase: _Optional[_Union[StepPhase, str]] = ..., context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupOptions, _Mapping]]] = ...) -> None: ...

class StepParametersResponse(_message.Message):
    __slots__ = ("error", "lead")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    error: _owner_pb2.RemoteError
    lead: int
    def __init__(self, error: _Optional[_Union[_owner_pb2.RemoteError, _Mapping]] = ..., lead: _Optional[int] = ...) -> None: ...
