"""Reading the files of a log: whole records, a torn tail that is cut, a damage that is refused."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from gradmesh.protos.frame import Array
from gradmesh.services.parameter_server.log.errors import LogCorrupt
from gradmesh.services.parameter_server.log.record import (
    HEADER_BYTES,
    AnyRecord,
    read_body,
    read_header,
)

_PREFIX, _SUFFIX = "log-", ".records"


def path_of(folder: Path, first: int) -> Path:
    """Return the file whose first record has a number."""
    return folder / f"{_PREFIX}{first:020}{_SUFFIX}"


def segments_of(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a log and the numbers of their first records, in order."""
    found = [p for p in folder.iterdir() if p.name.startswith(_PREFIX) and p.suffix == _SUFFIX]
    return sorted((int(p.stem.removeprefix(_PREFIX)), p) for p in found)


def read_segment(
    path: Path, first: int, *, is_last: bool
) -> Iterator[tuple[int, AnyRecord, list[Array]]]:
    """Yield number, record and arrays.

    Args:
        path: The file.
        first: Number of its first record.
        is_last: Whether a record cut off at its end is one that was never acknowledged; it is
            removed from the file then.

    Raises:
        LogCorrupt: A record is damaged; the message says where.
    """
    size, at, number = path.stat().st_size, 0, first
    if not size:
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        with memoryview(data) as view:
            while at < size:
                end = _end_of(view, at, size)
                if end is None:
                    break
                header = read_header(view[at : at + HEADER_BYTES])
                if header is None or header.number != number:
                    raise LogCorrupt(path, f"no record {number} at byte {at}")
                with view[at + HEADER_BYTES : end] as body:
                    found = read_body(header, body)
                if found is None:
                    raise LogCorrupt(path, f"record {number} at byte {at} is damaged")
                yield number, *found
                at, number = end, number + 1
        if at < size:
            if not is_last:
                raise LogCorrupt(path, f"it ends in the middle of record {number} at byte {at}")
            os.ftruncate(file.fileno(), at)
            os.fsync(file.fileno())


def _end_of(view: memoryview, at: int, size: int) -> int | None:
    """Return where a record ends, None if the file ends before: it was being written."""
    if at + HEADER_BYTES > size:
        return None
    header = read_header(view[at : at + HEADER_BYTES])
    if header is None:
        # Space that a file system gave and nobody wrote to.
        return at if any(view[at:size]) else None
    end = at + HEADER_BYTES + header.length
    return None if end > size else end
