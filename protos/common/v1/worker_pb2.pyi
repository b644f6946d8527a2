from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerId(_message.Message):
    __slots__ = ("name", "incarnation", "rank")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    rank: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...
