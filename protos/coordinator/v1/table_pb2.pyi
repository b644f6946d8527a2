from gradmesh.protos.common.v1 import array_pb2 as _array_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TABLE_KIND_UNSPECIFIED: _ClassVar[TableKind]
    TABLE_KIND_DENSE: _ClassVar[TableKind]
    TABLE_KIND_HASH: _ClassVar[TableKind]
TABLE_KIND_UNSPECIFIED: TableKind
TABLE_KIND_DENSE: TableKind
TABLE_KIND_HASH: TableKind

class Recipe(_message.Message):
    __slots__ = ("name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TableSpec(_message.Message):
    __slots__ = ("name", "rows", "dim", "dtype", "seed", "initializer", "optimizer", "kind", "schedule", "admission", "eviction", "max_bytes", "bad_gradients", "hot_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    BAD_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    HOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    dim: int
    dtype: _array_pb2.ElementType
    seed: int
    initializer: Recipe
    optimizer: Recipe
    kind: TableKind
    schedule: Recipe
    admission: Recipe
    eviction: Recipe
    max_bytes: int
    bad_gradients: Recipe
    hot_bytes: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ..., dtype: _Optional[_Union[_array_pb2.ElementType, str]] = ..., seed: _Optional[int] = ..., initializer: _Optional[_Union[Recipe, _Mapping]] = ..., optimizer: _Optional[_Union[Recipe, _Mapping]] = ..., kind: _Optional[_Union[TableKind, str]] = ..., schedule: _Optional[_Union[Recipe, _Mapping]] = ..., admission: _Optional[_Union[Recipe, _Mapping]] = ..., eviction: _Optional[_Union[Recipe, _Mapping]] = ..., max_bytes: _Optional[int] = ..., bad_gradients: _Optional[_Union[Recipe, _Mapping]] = ..., hot_bytes: _Optional[int] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: TableSpec
    def __init__(self, spec: _Optional[_Union[TableSpec, _Mapping]] = ...) -> None: ...

class CreateTableResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: bool = ...) -> None: ...

class DescribeTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeTableResponse(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: TableSpec
    def __init__(self, spec: _Optional[_Union[TableSpec, _Mapping]] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("specs", "next_page_token")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[TableSpec]
    next_page_token: str
    def __init__(self, specs: _Optional[_Iterable[_Union[TableSpec, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetShardMapRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetShardMapResponse(_message.Message):
    __slots__ = ("map",)
    MAP_FIELD_NUMBER: _ClassVar[int]
    map: ShardMap
    def __init__(self, map: _Optional[_Union[ShardMap, _Mapping]] = ...) -> None: ...

class ShardMap(_message.Message):
    __slots__ = ("epoch", "shards", "bucket_shards")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_SHARDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    bucket_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., bucket_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("name", "address", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...
