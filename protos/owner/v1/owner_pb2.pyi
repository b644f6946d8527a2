from gradmesh.protos.common.v1 import array_pb2 as _array_pb2
from gradmesh.protos.common.v1 import autograd_pb2 as _autograd_pb2
from gradmesh.protos.common.v1 import context_pb2 as _context_pb2
from gradmesh.protos.common.v1 import value_pb2 as _value_pb2
from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LaneKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_KIND_UNSPECIFIED: _ClassVar[LaneKind]
    LANE_KIND_SHM: _ClassVar[LaneKind]
    LANE_KIND_TCP: _ClassVar[LaneKind]
LANE_KIND_UNSPECIFIED: LaneKind
LANE_KIND_SHM: LaneKind
LANE_KIND_TCP: LaneKind

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("name", "role", "incarnation", "version", "functions", "open_contexts", "kept_refs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_REFS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    incarnation: int
    version: str
    functions: _containers.RepeatedScalarFieldContainer[str]
    open_contexts: int
    kept_refs: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[str] = ..., functions: _Optional[_Iterable[str]] = ..., open_contexts: _Optional[int] = ..., kept_refs: _Optional[int] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("function", "args", "kwargs", "autograd", "caller", "arrays")
    class KwargsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _value_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ...) -> None: ...
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_value_pb2.Value]
    kwargs: _containers.MessageMap[str, _value_pb2.Value]
    autograd: _autograd_pb2.AutogradNote
    caller: _worker_pb2.WorkerId
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_value_pb2.Value, _Mapping]]] = ..., kwargs: _Optional[_Mapping[str, _value_pb2.Value]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("result", "autograd", "arrays")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    result: _value_pb2.Value
    autograd: _autograd_pb2.AutogradNote
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, result: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class CreateRefRequest(_message.Message):
    __slots__ = ("ref", "function", "args", "kwargs", "autograd", "caller", "arrays")
    class KwargsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _value_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ...) -> None: ...
    REF_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_value_pb2.Value]
    kwargs: _containers.MessageMap[str, _value_pb2.Value]
    autograd: _autograd_pb2.AutogradNote
    caller: _worker_pb2.WorkerId
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_value_pb2.Value, _Mapping]]] = ..., kwargs: _Optional[_Mapping[str, _value_pb2.Value]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class CreateRefResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchRefRequest(_message.Message):
    __slots__ = ("ref", "autograd", "caller")
    REF_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    autograd: _autograd_pb2.AutogradNote
    caller: _worker_pb2.WorkerId
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ...) -> None: ...

class FetchRefResponse(_message.Message):
    __slots__ = ("value", "autograd", "arrays")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    value: _value_pb2.Value
    autograd: _autograd_pb2.AutogradNote
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class DeleteRefRequest(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ...) -> None: ...

class DeleteRefResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseContextRequest(_message.Message):
    __slots__ = ("context", "others")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    context: _context_pb2.ContextId
    others: _containers.RepeatedCompositeFieldContainer[_context_pb2.ContextId]
    def __init__(self, context: _Optional[_Union[_context_pb2.ContextId, _Mapping]] = ..., others: _Optional[_Iterable[_Union[_context_pb2.ContextId, _Mapping]]] = ...) -> None: ...

class ReleaseContextResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class OpenLaneRequest(_message.Message):
    __slots__ = ("kinds", "host", "version")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[LaneKind]
    host: str
    version: int
    def __init__(self, kinds: _Optional[_Iterable[_Union[LaneKind, str]]] = ..., host: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class OpenLaneResponse(_message.Message):
    __slots__ = ("kind", "address", "secret")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    kind: LaneKind
    address: str
    secret: bytes
    def __init__(self, kind: _Optional[_Union[LaneKind, str]] = ..., address: _Optional[str] = ..., secret: _Optional[bytes] = ...) -> None: ...
