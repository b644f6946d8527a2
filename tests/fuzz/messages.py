"""Valid messages of any type of the contract, drawn from its descriptors."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.words import Words

_F = FieldDescriptor
_MOST_DEPTH = 4
# Without one of their fields these are refused at once.
_IDS = frozenset({"ContextId", "WorkerId", "RemoteRef", "ForkId", "Member", "PushRequest"})
# Arrays are added by hand; a reference that names another process is refused at once.
_LEFT_OUT = frozenset({"arrays", "owner_incarnation"})
_MOST = {
    _F.CPPTYPE_INT32: 2**31 - 1,
    _F.CPPTYPE_INT64: 2**63 - 1,
    _F.CPPTYPE_UINT32: 2**32 - 1,
    _F.CPPTYPE_UINT64: 2**64 - 1,
}
_FLOATS = (0.0, 1.0, 0.5, -1.0, 1e-9, 1e300, math.inf, -math.inf, math.nan)


class MessageMaker:
    """Draws messages.

    Args:
        chance: The source of all decisions.
        words: The vocabulary.
    """

    def __init__(self, chance: random.Random, words: Words) -> None:
        self._chance = chance
        self._words = words

    def make(self, message_type: type[Message]) -> Any:
        """Return a message with most of its fields; bulk arrays are left out."""
        return self._fill(message_type(), 0)

    def change(self, message: Message) -> None:
        """Draw one field again, of the message or of one that it contains."""
        chance = self._chance
        while True:
            inner = [value for _, value in message.ListFields() if isinstance(value, Message)]
            inner = [value for value in inner if value.DESCRIPTOR.fields]
            if not inner or chance.random() < 0.5:
                break
            message = chance.choice(inner)
        fields = [f for f in message.DESCRIPTOR.fields if f.name != "arrays"]
        if fields:
            field = chance.choice(fields)
            message.ClearField(field.name)
            if chance.random() < 0.8:
                self._set(message, field, 1)

    def _fill(self, message: Message, depth: int) -> Message:
        likely = 0.98 if message.DESCRIPTOR.name in _IDS else 0.75
        fields = [f for f in message.DESCRIPTOR.fields if f.name not in _LEFT_OUT]
        alternatives: dict[str, list[FieldDescriptor]] = {}
        for field in fields:
            oneof = field.containing_oneof
            alternatives.setdefault(oneof.name if oneof else field.name, []).append(field)
        for some in alternatives.values():
            if self._chance.random() < likely:
                self._set(message, self._chance.choice(some), depth)
        return message

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if depth > _MOST_DEPTH and field.cpp_type == _F.CPPTYPE_MESSAGE:
            return
        if not field.is_repeated:
            if field.cpp_type == _F.CPPTYPE_MESSAGE:
                inner = getattr(message, field.name)
                inner.SetInParent()
                self._fill(inner, depth + 1)
            else:
                setattr(message, field.name, self._scalar(field))
            return
        held: Any = getattr(message, field.name)
        for _ in range(self._chance.choice((0, 1, 1, 2, 3))):
            entry = field.message_type
            if entry is not None and entry.GetOptions().map_entry:
                self._put(held, entry, depth)
            elif field.cpp_type == _F.CPPTYPE_MESSAGE:
                self._fill(held.add(), depth + 1)
            else:
                held.append(self._scalar(field))

    def _put(self, held: Any, entry: Any, depth: int) -> None:
        key = self._scalar(entry.fields_by_name["key"])
        value = entry.fields_by_name["value"]
        if value.cpp_type == _F.CPPTYPE_MESSAGE:
            self._fill(held[key], depth + 1)
        else:
            held[key] = self._scalar(value)

    def _scalar(self, field: FieldDescriptor) -> Any:
        chance = self._chance
        if field.cpp_type == _F.CPPTYPE_ENUM:
            known = [value.number for value in field.enum_type.values]
            return chance.choice([*known, 99] if chance.random() < 0.1 else known)
        if field.cpp_type == _F.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if field.type == _F.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 8, 64)))
        if field.cpp_type == _F.CPPTYPE_STRING:
            return self._words.text(chance, field.name, field.containing_type.name)
        if field.cpp_type in (_F.CPPTYPE_DOUBLE, _F.CPPTYPE_FLOAT):
            return chance.choice(_FLOATS)
        return self._words.number(chance, field.name, _MOST[field.cpp_type])
