"""Lane frames made by hand: valid ones, hostile array tables, wrong headers, mutated heads."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradmesh.protos.dtype import WIRE_TO_NUMPY, wire_dtype
from gradmesh.protos.lane import ALIGN, HEADER, MAGIC, FrameHeader, aligned
from gradmesh.protos.method import Method
from tests.fuzz.mutation import HUGE, INTERESTING, mutate
from tests.fuzz.rpc_frames import RPCS, SERVER, FrameMaker

HOT = {method.number: method for method in RPCS[SERVER] if method.number}
"""The rpcs that lanes carry, by their numbers."""

_ENTRY = struct.Struct("<BBHIQ")
_UNKNOWN = (0, 13, 77, 65535)
_DEADLINES_MS = (0, 1, 20, 100)
_MOST_ENTRIES = 5000


@dataclass(frozen=True)
class LaneFrame:
    """The parts of a frame.

    Attributes:
        header: The fixed part.
        table: The description of the arrays.
        head: The message without arrays.
        body: The arrays.
        is_whole: Whether the header's sizes are those of the parts: the server must answer.
    """

    header: FrameHeader
    table: bytes
    head: bytes
    body: bytes
    is_whole: bool = True

    @property
    def method(self) -> Method | None:
        """The rpc; None for a number that no rpc has."""
        return HOT.get(self.header.number)

    @property
    def prefix(self) -> bytes:
        """The bytes before the arrays."""
        return HEADER.pack(*self.header) + self.table + self.head

    @property
    def inline(self) -> bytes:
        """All bytes, as lanes without shared memory carry them."""
        prefix = self.prefix
        padding = bytes(-len(prefix) % ALIGN) if self.body else b""
        return prefix + padding + self.body


class LaneFrameMaker:
    """Draws lane frames.

    Args:
        maker: Draws the requests.
        methods: The rpcs.
    """

    def __init__(self, maker: FrameMaker, methods: Sequence[Method] = tuple(HOT.values())) -> None:
        self._maker = maker
        self._methods = methods
        self._chance: random.Random = maker.chance
        self._calls = 0

    def make(self) -> LaneFrame:
        """Return a frame: valid, or hostile in one of its parts."""
        chance = self._chance
        request = self._maker.make(chance.choice(self._methods))
        entries, body = _lay_out(request.arrays)
        if chance.random() < 0.15:
            entries = _hostile(chance, entries)
        table = b"".join(entries)
        if chance.random() < 0.05:
            table = mutate(chance, table)
        if chance.random() < 0.1:
            body = mutate(chance, body)
        frame = self._frame(request.method.number, table, self._maker.head(request), body)
        how = chance.random()
        if how < 0.04:
            return replace(frame, header=_wrong(chance, frame.header), is_whole=False)
        if how < 0.06:
            number = chance.choice(_UNKNOWN)
            return replace(frame, header=frame.header._replace(number=number))
        return frame

    def _frame(self, number: int, table: bytes, head: bytes, body: bytes) -> LaneFrame:
        self._calls += 1
        deadline_ms = self._chance.choice(_DEADLINES_MS)
        sizes = len(head), len(table), 0, len(body)
        return LaneFrame(
            FrameHeader(MAGIC, number, self._calls, deadline_ms, *sizes), table, head, body
        )


def _lay_out(arrays: Sequence[Any]) -> tuple[list[bytes], bytes]:
    """Return the descriptions of arrays, and the arrays."""
    entries, body = [], b""
    for array in arrays:
        number = wire_dtype(array.dtype)
        body += bytes(aligned(len(body)) - len(body))
        shape = struct.pack(f"<{array.ndim}Q", *array.shape)
        entries.append(_ENTRY.pack(number, array.ndim, 0, 0, len(body)) + shape)
        body += np.ascontiguousarray(array).tobytes()
    return entries, body


def _hostile(chance: random.Random, entries: list[bytes]) -> list[bytes]:
    """Return descriptions of which one has a hostile offset, shape or type; or far too many."""
    if chance.random() < 0.02:
        return [_ENTRY.pack(1, 0, 0, 0, 0)] * _MOST_ENTRIES
    dtype = chance.choice([*WIRE_TO_NUMPY, 14, 99, 255])
    axes = chance.choice((0, 1, 2, 3, 8, 9, 200))
    extents = [chance.choice((0, 1, 2, 64, *HUGE)) for _ in range(min(axes, 9))]
    if chance.random() < 0.5:
        # Bytes that look right, so that only the position is wrong.
        extents = extents and [chance.choice((0, 1, 2))] * len(extents)
    offset = chance.choice((0, 1, 8, 64, 4096, 1 << 20, *HUGE, *(n * 64 for n in INTERESTING)))
    made = _ENTRY.pack(dtype, axes, 0, 0, offset) + struct.pack(f"<{len(extents)}Q", *extents)
    changed = list(entries)
    if changed and chance.random() < 0.7:
        changed[chance.randrange(len(changed))] = made
    else:
        changed.append(made)
    return changed


def _wrong(chance: random.Random, header: FrameHeader) -> FrameHeader:
    """Return a header with a field that does not fit the parts."""
    field = chance.choice(("magic", "head_bytes", "table_bytes", "body_bytes", "reserved"))
    bits = {"magic": 16, "body_bytes": 64}.get(field, 32)
    value = chance.choice((*INTERESTING, *HUGE)) % (1 << bits)
    return header._replace(**{field: value})
