"""The frame between two ranks: a fixed header, then a payload whose size is known before.

The header says in words which collective it belongs to, so that ranks that call different
things find out at once instead of reading one another's bytes wrongly.
"""

import struct
from typing import Final, NamedTuple, final

from gradmesh.trainer.process_group.farewell import Kind

_HEADER: Final = struct.Struct("<4sBxxxqQ72s")
_MAGIC: Final = b"GMPG"
_TEXT_BYTES: Final = 72

HEADER_BYTES: Final = _HEADER.size


@final
class Header(NamedTuple):
    """The head of a frame."""

    kind: Kind
    """Data, or a reason for leaving."""
    number: int
    """The sequence number of data on this link; for a reason, the rank it is about."""
    payload_bytes: int
    """Length of the payload that follows."""
    text: str
    """The collective in words, such as `all_reduce(sum) of 5 float32`."""


def pack_header(header: Header) -> bytes:
    """Return the header's bytes; the text is cut to what fits."""
    text = header.text.encode("ascii", "replace")[:_TEXT_BYTES]
    return _HEADER.pack(_MAGIC, header.kind, header.number, header.payload_bytes, text)


def unpack_header(data: bytes | bytearray) -> Header:
    """Read a header back.

    Raises:
        ValueError: The bytes are not a header.
    """
    if len(data) != HEADER_BYTES:
        raise ValueError(f"a frame starts with {HEADER_BYTES} bytes, not {len(data)}")
    magic, kind, number, payload_bytes, text = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise ValueError(f"not a frame of this protocol: it starts with {magic!r}")
    return Header(Kind(kind), number, payload_bytes, text.rstrip(b"\0").decode("ascii", "replace"))
