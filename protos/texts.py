"""Checks of the texts in a request: names, addresses, labels and reports of failures.

A text field is a name unless it is listed here, so a new field has the strictest check by default.
Requests of hot rpcs are not checked: a server only looks their names up,
and checks a name before it stores it.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gradmesh.protos.errors import InvalidRequest, LimitExceeded
from gradmesh.protos.limits import (
    MAX_ENTRIES,
    MAX_ERROR_BYTES,
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    check_address,
    check_name,
    check_text,
)

ADDRESSES = frozenset({"coordinator.v1.Member.address"})
"""Fields that hold host:port."""

LABELS = frozenset(
    {
        "autograd.v1.Failure.MetadataEntry.key",
        "autograd.v1.Failure.reason",
        "coordinator.v1.Recipe.SettingsEntry.key",
        "coordinator.v1.RegisterRequest.protocol",
        "coordinator.v1.ReportResultRequest.FiguresEntry.key",
        "owner.v1.OpenLaneRequest.host",
    }
)
"""Fields that hold one short line of printable characters."""

REPORTS = {
    "autograd.v1.Failure.MetadataEntry.value": MAX_ERROR_BYTES,
    "autograd.v1.Failure.message": MAX_ERROR_BYTES,
    "coordinator.v1.Checkpoint.error": MAX_TEXT_BYTES,
    "coordinator.v1.Checkpoint.path": MAX_TEXT_BYTES,
    "coordinator.v1.ReportMoveRequest.error": MAX_TEXT_BYTES,
}
"""Fields that hold a path or the reason of a failure, and their limits in bytes: any characters,
which are escaped where they are shown."""


def check_texts(message: Message) -> None:
    """Check all texts of a request; empty ones are left to the rpc.

    Raises:
        InvalidRequest: A text is not a name or an address, or not printable, where it has to be.
        LimitExceeded: A text is too long, or a list has too many entries.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in _entries(field, value):
                _check(field, text)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            kind = field.message_type
            if kind is not None and kind.GetOptions().map_entry:
                _check_map(field, kind, value)
            else:
                for part in _entries(field, value):
                    check_texts(part)


def _entries(field: FieldDescriptor, value: Any) -> Iterable[Any]:
    if not field.is_repeated:
        return (value,)
    if len(value) > MAX_ENTRIES:
        raise LimitExceeded(
            f"{_shown(field)} has {len(value)} entries; the limit is {MAX_ENTRIES}: send fewer",
            limit=MAX_ENTRIES,
        )
    return tuple(value)


def _check_map(field: FieldDescriptor, entry: Descriptor, entries: Any) -> None:
    key, held = entry.fields
    for name in _entries(field, entries):
        if key.type == FieldDescriptor.TYPE_STRING:
            _check(key, name)
        if held.type == FieldDescriptor.TYPE_STRING:
            _check(held, entries[name])
        elif held.type == FieldDescriptor.TYPE_MESSAGE:
            check_texts(entries[name])


def _check(field: FieldDescriptor, text: str) -> None:
    if not text:
        return
    path = field.full_name.removeprefix("gradmesh.")
    if path in ADDRESSES:
        check_address(text)
    elif path in REPORTS:
        check_text(_shown(field), text, REPORTS[path])
    elif path in LABELS:
        check_text(_shown(field), text, MAX_NAME_BYTES)
        if not text.isprintable():
            raise InvalidRequest(
                f"{_shown(field)} is {text[:40]!r}; use printable characters in one line"
            )
    else:
        check_name(_shown(field), text)


def _shown(field: FieldDescriptor) -> str:
    """Return the name of a field for an error, such as TableSpec.name."""
    return ".".join(field.full_name.split(".")[3:])
