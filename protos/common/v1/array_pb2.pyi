from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_BOOL: _ClassVar[ElementType]
    ELEMENT_TYPE_INT8: _ClassVar[ElementType]
    ELEMENT_TYPE_INT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT32: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT8: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT16: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT32: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT64: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT64: _ClassVar[ElementType]
    ELEMENT_TYPE_BFLOAT16: _ClassVar[ElementType]
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_BOOL: ElementType
ELEMENT_TYPE_INT8: ElementType
ELEMENT_TYPE_INT16: ElementType
ELEMENT_TYPE_INT32: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_UINT8: ElementType
ELEMENT_TYPE_UINT16: ElementType
ELEMENT_TYPE_UINT32: ElementType
ELEMENT_TYPE_UINT64: ElementType
ELEMENT_TYPE_FLOAT16: ElementType
ELEMENT_TYPE_FLOAT32: ElementType
ELEMENT_TYPE_FLOAT64: ElementType
ELEMENT_TYPE_BFLOAT16: ElementType

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "padding", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    padding: bytes
    data: bytes
    def __init__(self, dtype: _Optional[_Union[ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., padding: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...
