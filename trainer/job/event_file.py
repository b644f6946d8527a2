"""TensorBoard's event files, written without TensorBoard.

A file is a row of records: length, checksum of the length, an Event message, its checksum. Of the
message only the fields that curves need are written, by hand: five tags of protobuf.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, final

_POLYNOMIAL: Final = 0x82F63B78


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum of some bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@final
class EventFile:
    """A file of scalars by name and step; a context manager.

    Args:
        folder: Where TensorBoard looks; made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self._file: IO[bytes] = (folder / f"events.out.tfevents.{now:.0f}.gradmesh").open("ab")
        self._write(struct.pack("<Bd", 0x09, now) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step."""
        summary = b"".join(
            _bytes(1, _bytes(1, name.encode()) + struct.pack("<Bf", 0x15, value))
            for name, value in values.items()
        )
        head = struct.pack("<Bd", 0x09, time.time()) + b"\x10" + _varint(step)
        self._write(head + _bytes(5, summary))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))
        self._file.flush()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content
