from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class TakeShardRequest(_message.Message):
    __slots__ = ("name", "incarnation", "dataset", "samples", "shard_samples", "epochs", "done", "sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    dataset: str
    samples: int
    shard_samples: int
    epochs: int
    done: _containers.RepeatedScalarFieldContainer[int]
    sequence: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., dataset: _Optional[str] = ..., samples: _Optional[int] = ..., shard_samples: _Optional[int] = ..., epochs: _Optional[int] = ..., done: _Optional[_Iterable[int]] = ..., sequence: _Optional[int] = ...) -> None: ...

class TakeShardResponse(_message.Message):
    __slots__ = ("epoch", "shard", "begin", "end", "is_over")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shard: int
    begin: int
    end: int
    is_over: bool
    def __init__(self, epoch: _Optional[int] = ..., shard: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., is_over: bool = ...) -> None: ...

class GetDataPositionRequest(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    def __init__(self, dataset: _Optional[str] = ...) -> None: ...

class GetDataPositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: bytes
    def __init__(self, position: _Optional[bytes] = ...) -> None: ...

class SetDataPositionRequest(_message.Message):
    __slots__ = ("dataset", "position")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    position: bytes
    def __init__(self, dataset: _Optional[str] = ..., position: _Optional[bytes] = ...) -> None: ...

class SetDataPositionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
