from gradmesh.protos.common.v1 import context_pb2 as _context_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AutogradNote(_message.Message):
    __slots__ = ("context", "message")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    message: int
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., message: _Optional[int] = ...) -> None: ...
