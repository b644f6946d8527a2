from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ContextId(_message.Message):
    __slots__ = ("worker", "incarnation", "counter")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    counter: int
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class StepMark(_message.Message):
    __slots__ = ("generation", "step", "rank")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    rank: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...
