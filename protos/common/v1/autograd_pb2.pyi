from gradmesh.protos.common.v1 import context_pb2 as _context_pb2
from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AutogradNote(_message.Message):
    __slots__ = ("context", "message", "lineage", "mark")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    message: int
    lineage: Lineage
    mark: _context_pb2.StepMark
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., message: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., mark: _Optional[_Union[_context_pb2.StepMark, _Mapping]] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("workers", "messages")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerId]
    messages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerId, _Mapping]]] = ..., messages: _Optional[_Iterable[int]] = ...) -> None: ...
