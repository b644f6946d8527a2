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
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("name", "role", "incarnation", "version", "functions", "open_contexts", "kept_refs", "next_page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_REFS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    incarnation: int
    version: str
    functions: _containers.RepeatedScalarFieldContainer[str]
    open_contexts: int
    kept_refs: int
    next_page_token: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[str] = ..., functions: _Optional[_Iterable[str]] = ..., open_contexts: _Optional[int] = ..., kept_refs: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RemoteError(_message.Message):
    __slots__ = ("type", "message", "traceback", "worker", "function", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    traceback: str
    worker: str
    function: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., worker: _Optional[str] = ..., function: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("function", "args", "kwargs", "autograd", "caller", "call_id", "depth", "target", "arrays")
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
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_value_pb2.Value]
    kwargs: _containers.MessageMap[str, _value_pb2.Value]
    autograd: _autograd_pb2.AutogradNote
    caller: _worker_pb2.WorkerId
    call_id: int
    depth: int
    target: _value_pb2.RemoteRef
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_value_pb2.Value, _Mapping]]] = ..., kwargs: _Optional[_Mapping[str, _value_pb2.Value]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., call_id: _Optional[int] = ..., depth: _Optional[int] = ..., target: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("result", "autograd", "error", "deferred", "arrays")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    result: _value_pb2.Value
    autograd: _autograd_pb2.AutogradNote
    error: RemoteError
    deferred: bool
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, result: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., error: _Optional[_Union[RemoteError, _Mapping]] = ..., deferred: bool = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class CreateRefRequest(_message.Message):
    __slots__ = ("ref", "function", "args", "kwargs", "autograd", "caller", "call_id", "depth", "target", "arrays")
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
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_value_pb2.Value]
    kwargs: _containers.MessageMap[str, _value_pb2.Value]
    autograd: _autograd_pb2.AutogradNote
    caller: _worker_pb2.WorkerId
    call_id: int
    depth: int
    target: _value_pb2.RemoteRef
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_value_pb2.Value, _Mapping]]] = ..., kwargs: _Optional[_Mapping[str, _value_pb2.Value]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., call_id: _Optional[int] = ..., depth: _Optional[int] = ..., target: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class CreateRefResponse(_message.Message):
    __slots__ = ("deferred",)
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    deferred: bool
    def __init__(self, deferred: bool = ...) -> None: ...

class FetchRefRequest(_message.Message):
    __slots__ = ("ref", "autograd", "caller", "call_id")
    REF_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    autograd: _autograd_pb2.AutogradNote
    caller: _worker_pb2.WorkerId
    call_id: int
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., call_id: _Optional[int] = ...) -> None: ...

class FetchRefResponse(_message.Message):
    __slots__ = ("value", "autograd", "error", "deferred", "arrays")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    value: _value_pb2.Value
    autograd: _autograd_pb2.AutogradNote
    error: RemoteError
    deferred: bool
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., error: _Optional[_Union[RemoteError, _Mapping]] = ..., deferred: bool = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class DescribeRefRequest(_message.Message):
    __slots__ = ("ref", "caller", "call_id")
    REF_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    caller: _worker_pb2.WorkerId
    call_id: int
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., call_id: _Optional[int] = ...) -> None: ...

class DescribeRefResponse(_message.Message):
    __slots__ = ("type", "methods", "error", "deferred")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    type: str
    methods: _containers.RepeatedScalarFieldContainer[str]
    error: RemoteError
    deferred: bool
    def __init__(self, type: _Optional[str] = ..., methods: _Optional[_Iterable[str]] = ..., error: _Optional[_Union[RemoteError, _Mapping]] = ..., deferred: bool = ...) -> None: ...

class ForkRefRequest(_message.Message):
    __slots__ = ("ref", "caller")
    REF_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    caller: _worker_pb2.WorkerId
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ...) -> None: ...

class ForkRefResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AcceptForkRequest(_message.Message):
    __slots__ = ("fork",)
    FORK_FIELD_NUMBER: _ClassVar[int]
    fork: _value_pb2.ForkId
    def __init__(self, fork: _Optional[_Union[_value_pb2.ForkId, _Mapping]] = ...) -> None: ...

class AcceptForkResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteRefRequest(_message.Message):
    __slots__ = ("ref", "more")
    REF_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ref: _value_pb2.RemoteRef
    more: _containers.RepeatedCompositeFieldContainer[_value_pb2.RemoteRef]
    def __init__(self, ref: _Optional[_Union[_value_pb2.RemoteRef, _Mapping]] = ..., more: _Optional[_Iterable[_Union[_value_pb2.RemoteRef, _Mapping]]] = ...) -> None: ...

class DeleteRefResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeliverRequest(_message.Message):
    __slots__ = ("caller", "call_id", "worker", "result", "autograd", "error", "type", "methods", "arrays")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    AUTOGRAD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    caller: _worker_pb2.WorkerId
    call_id: int
    worker: _worker_pb2.WorkerId
    result: _value_pb2.Value
    autograd: _autograd_pb2.AutogradNote
    error: RemoteError
    type: str
    methods: _containers.RepeatedScalarFieldContainer[str]
    arrays: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., call_id: _Optional[int] = ..., worker: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., result: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., autograd: _Optional[_Union[_autograd_pb2.AutogradNote, _Mapping]] = ..., error: _Optional[_Union[RemoteError, _Mapping]] = ..., type: _Optional[str] = ..., methods: _Optional[_Iterable[str]] = ..., arrays: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class DeliverResponse(_message.Message):
    __slots__ = ("wanted",)
    WANTED_FIELD_NUMBER: _ClassVar[int]
    wanted: bool
    def __init__(self, wanted: bool = ...) -> None: ...

class CheckCallsRequest(_message.Message):
    __slots__ = ("caller", "call_ids")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    caller: _worker_pb2.WorkerId
    call_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, caller: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., call_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CheckCallsResponse(_message.Message):
    __slots__ = ("unknown_ids",)
    UNKNOWN_IDS_FIELD_NUMBER: _ClassVar[int]
    unknown_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, unknown_ids: _Optional[_Iterable[int]] = ...) -> None: ...

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

class ExchangeRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ExchangeResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class OpenLaneResponse(_message.Message):
    __slots__ = ("kind", "address", "secret")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    kind: LaneKind
    address: str
    secret: bytes
    def __init__(self, kind: _Optional[_Union[LaneKind, str]] = ..., address: _Optional[str] = ..., secret: _Optional[bytes] = ...) -> None: ...
