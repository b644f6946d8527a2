from gradmesh.protos.common.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("null_value", "bool_value", "int_value", "float_value", "string_value", "bytes_value", "array_index", "list_value", "map_value", "ref_value", "tensor_value", "rows_value", "worker_value", "module_value")
    NULL_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    LIST_VALUE_FIELD_NUMBER: _ClassVar[int]
    MAP_VALUE_FIELD_NUMBER: _ClassVar[int]
    REF_VALUE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_VALUE_FIELD_NUMBER: _ClassVar[int]
    ROWS_VALUE_FIELD_NUMBER: _ClassVar[int]
    WORKER_VALUE_FIELD_NUMBER: _ClassVar[int]
    MODULE_VALUE_FIELD_NUMBER: _ClassVar[int]
    null_value: NullValue
    bool_value: bool
    int_value: int
    float_value: float
    string_value: str
    bytes_value: bytes
    array_index: int
    list_value: ListValue
    map_value: MapValue
    ref_value: RemoteRef
    tensor_value: TensorValue
    rows_value: RowsValue
    worker_value: _worker_pb2.WorkerId
    module_value: ModuleValue
    def __init__(self, null_value: _Optional[_Union[NullValue, _Mapping]] = ..., bool_value: bool = ..., int_value: _Optional[int] = ..., float_value: _Optional[float] = ..., string_value: _Optional[str] = ..., bytes_value: _Optional[bytes] = ..., array_index: _Optional[int] = ..., list_value: _Optional[_Union[ListValue, _Mapping]] = ..., map_value: _Optional[_Union[MapValue, _Mapping]] = ..., ref_value: _Optional[_Union[RemoteRef, _Mapping]] = ..., tensor_value: _Optional[_Union[TensorValue, _Mapping]] = ..., rows_value: _Optional[_Union[RowsValue, _Mapping]] = ..., worker_value: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., module_value: _Optional[_Union[ModuleValue, _Mapping]] = ...) -> None: ...

class NullValue(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListValue(_message.Message):
    __slots__ = ("items", "fixed")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Value]
    fixed: bool
    def __init__(self, items: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., fixed: bool = ...) -> None: ...

class MapValue(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, Value]
    def __init__(self, entries: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class TensorValue(_message.Message):
    __slots__ = ("array_index", "requires_grad")
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    array_index: int
    requires_grad: bool
    def __init__(self, array_index: _Optional[int] = ..., requires_grad: bool = ...) -> None: ...

class RowsValue(_message.Message):
    __slots__ = ("ids_index", "rows_index", "num_rows", "coalesced")
    IDS_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    ids_index: int
    rows_index: int
    num_rows: int
    coalesced: bool
    def __init__(self, ids_index: _Optional[int] = ..., rows_index: _Optional[int] = ..., num_rows: _Optional[int] = ..., coalesced: bool = ...) -> None: ...

class RemoteRef(_message.Message):
    __slots__ = ("owner", "creator", "incarnation", "counter", "owner_incarnation", "fork", "parent")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    OWNER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    creator: str
    incarnation: int
    counter: int
    owner_incarnation: int
    fork: ForkId
    parent: _worker_pb2.WorkerId
    def __init__(self, owner: _Optional[str] = ..., creator: _Optional[str] = ..., incarnation: _Optional[int] = ..., counter: _Optional[int] = ..., owner_incarnation: _Optional[int] = ..., fork: _Optional[_Union[ForkId, _Mapping]] = ..., parent: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ...) -> None: ...

class ForkId(_message.Message):
    __slots__ = ("worker", "counter")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerId
    counter: int
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerId, _Mapping]] = ..., counter: _Optional[int] = ...) -> None: ...

class ModuleValue(_message.Message):
    __slots__ = ("module", "device", "type", "training")
    MODULE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    module: RemoteRef
    device: str
    type: str
    training: bool
    def __init__(self, module: _Optional[_Union[RemoteRef, _Mapping]] = ..., device: _Optional[str] = ..., type: _Optional[str] = ..., training: bool = ...) -> None: ...
