"""The log: one writer at a time, group commit for all callers that wait."""

import contextlib
import fcntl
import itertools
import mmap
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import ClassVar, final

from gradmesh.base_error import GradmeshError
from gradmesh.protos.errors import StoreFull
from gradmesh.protos.frame import Array
from gradmesh.sdk.checkpoint.manifest import sync_folder
from gradmesh.sdk.process.process import UNRECOVERABLE
from gradmesh.services.parameter_server.log.record import (
    HEADER_BYTES,
    AnyRecord,
    Header,
    StepCommitted,
    StepPrepared,
    encode,
    read_body,
    read_header,
)

_PREFIX, _SUFFIX = "log-", ".records"
_SEGMENT = re.compile(re.escape(_PREFIX) + r"(\d{20})" + re.escape(_SUFFIX))


def path_of(folder: Path, first: int) -> Path:
    """Return the path of the segment whose first record is `first`."""
    return folder / f"{_PREFIX}{first:020}{_SUFFIX}"


def segments_of(folder: Path) -> list[tuple[int, Path]]:
    """Return the segments of a log with the numbers of their first records, in order."""
    found = [(_SEGMENT.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match and path.is_file())


def read_segment(
    path: Path, first: int, *, is_last: bool
) -> Iterator[tuple[int, AnyRecord, list[Array]]]:
    """Yield number, record and arrays of each record of a segment.

    Args:
        path: The file.
        first: Number of its first record.
        is_last: Whether it is the last segment. A torn record at its end was never acknowledged
            and is cut off.

    Raises:
        LogCorrupt: A record is damaged; the message has the position.
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
                    found = _body(path, at, header, body)
                yield number, *found
                at, number = end, number + 1
        if at < size:
            if not is_last:
                raise LogCorrupt(path, f"it ends in the middle of record {number} at byte {at}")
            os.ftruncate(file.fileno(), at)
            os.fsync(file.fileno())


def _body(path: Path, at: int, header: Header, body: memoryview) -> tuple[AnyRecord, list[Array]]:
    """Return the record of a header.

    Raises:
        LogCorrupt: It is damaged.
    """
    why = "is damaged"
    try:
        found = read_body(header, body)
    except ValueError as error:
        found, why = None, f"cannot be read: {error}"
    if found is None:
        raise LogCorrupt(path, f"record {header.number} at byte {at} {why}")
    return found


def _end_of(view: memoryview, at: int, size: int) -> int | None:
    """Return the end of a record, or None for a torn one at the end of the file."""
    if at + HEADER_BYTES > size:
        return None
    header = read_header(view[at : at + HEADER_BYTES])
    if header is None:
        # Space that the file system allocated and that was never written.
        return at if any(view[at:size]) else None
    end = at + HEADER_BYTES + header.length
    return None if end > size else end


@final
class LogCorrupt(RuntimeError, GradmeshError):
    """A log is damaged, or belongs to another server.

    Args:
        path: The file.
        why: The damage.
    """

    exit_code: ClassVar[int] = UNRECOVERABLE

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(
            f"log {path}: {why}; restore a checkpoint into an empty parameter_server.state_dir"
        )


_SEGMENT_BYTES = 64 << 20
# Most buffers of one system call.
_MAX_PARTS = 1024


class Mode(Enum):
    """When a record counts as durable."""

    OFF = "off"
    """At once: nothing is written."""
    OS = "os"
    """When the operating system has it: survives the process, not the machine."""
    FSYNC = "fsync"
    """When the disk has it."""


@final
class Log:
    """The log of one server.

    Args:
        folder: Folder of the log; made if it does not exist.
        mode: When a record counts as durable.
        owner: Name of the server; the folder of another server is refused.
        segment_bytes: Size at which a new segment begins.

    Attributes:
        append_lock: Held while rows change, so that records are in the order of the changes.
        bytes_since_snapshot: Bytes that a restart would have to read.

    Raises:
        LogCorrupt: The folder belongs to another server, or is in use.
    """

    def __init__(
        self, folder: Path, mode: Mode, *, owner: str, segment_bytes: int = _SEGMENT_BYTES
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._folder_lock = _take(folder, owner)
        self.mode = mode
        self.append_lock = threading.RLock()  # guards all below except the state of the flush
        self._segment_bytes = segment_bytes
        self._next = 1
        self._file = -1
        self._size = 0
        self._broken = ""
        self._deferred: StepCommitted | None = None
        self.bytes_since_snapshot = sum(path.stat().st_size for _, path in segments_of(folder))
        self._flushed = threading.Condition()  # guards _durable and _flushing
        self._durable = 0
        self._flushing = False

    @property
    def next_number(self) -> int:
        """Number of the next record."""
        return self._next

    def resume_at(self, number: int) -> None:
        """Set the number of the next record, after recovery."""
        with self.append_lock, self._flushed:
            self._next, self._durable = number, number - 1

    def defer(self, record: StepCommitted) -> None:
        """Defer a record until the next one, which may imply it. Called under the append lock.

        If the process dies before it is written, the next generation of trainers decides on the
        step again, from what the servers have prepared.
        """
        self._deferred = record

    def flush(self) -> None:
        """Write the deferred record, if there is one."""
        with self.append_lock:
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                self._append(deferred, ())

    def append(self, record: AnyRecord, arrays: Sequence[Array] = ()) -> int:
        """Write a record; return its number. Called under the append lock.

        Raises:
            StoreFull: The disk is full; nothing is written.
        """
        if self._deferred is not None:
            if isinstance(record, StepPrepared):
                self._deferred = None
            else:
                self.flush()
        return self._append(record, arrays)

    def _append(self, record: AnyRecord, arrays: Sequence[Array]) -> int:
        if self._broken:
            raise StoreFull(self._broken)
        if self._file < 0 or self._size >= self._segment_bytes:
            self._begin_segment()
        number = self._next
        parts = encode(number, record, arrays)
        try:
            self._size += _write(self._file, parts)
        except OSError as error:
            self._undo(error)
        self._next += 1
        self.bytes_since_snapshot += sum(len(part) for part in parts)
        return number

    def _undo(self, error: OSError) -> None:
        """Remove a partly written record; if that fails, refuse all further records."""
        why = f"the log in {self.folder} cannot be written: {error.strerror}; free its disk"
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._broken = why + ", then restart this server"
        raise StoreFull(why) from error

    def _begin_segment(self) -> None:
        self._close_file()
        path = path_of(self.folder, self._next)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise StoreFull(
                f"log file {path} cannot be made: {error.strerror}; free its disk"
            ) from error
        self._size = os.fstat(self._file).st_size
        if self.mode is Mode.FSYNC:
            sync_folder(self.folder)

    def wait(self, number: int) -> None:
        """Wait until a record is durable; one flush serves all waiting callers."""
        if self.mode is not Mode.FSYNC:
            return
        while True:
            with self._flushed:
                while self._flushing and self._durable < number:
                    self._flushed.wait()
                if self._durable >= number:
                    return
                self._flushing = True
            reached = self._durable
            try:
                reached = self._flush()
            finally:
                with self._flushed:
                    self._durable = max(self._durable, reached)
                    self._flushing = False
                    self._flushed.notify_all()

    def _flush(self) -> int:
        with self.append_lock:
            newest = self._next - 1
            if self._file < 0:
                return newest  # the file was flushed when it was closed
            file = os.dup(self._file)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return newest

    def remove_before(self, number: int) -> None:
        """Remove the segments whose records are all before a number."""
        with self.append_lock:
            found = segments_of(self.folder)
            for (_, path), (following, _) in itertools.pairwise(found):
                if following <= number:
                    path.unlink()
            self.bytes_since_snapshot = sum(p.stat().st_size for _, p in segments_of(self.folder))

    def rotate(self) -> int:
        """Begin a segment; return the number of its first record. Called under the append lock."""
        self.flush()
        self._close_file()
        return self._next

    def _close_file(self) -> None:
        if self._file >= 0:
            if self.mode is Mode.FSYNC:
                os.fsync(self._file)
                with self._flushed:
                    self._durable = self._next - 1
            os.close(self._file)
        self._file = -1

    def close(self) -> None:
        """Flush and refuse further records; may be called twice."""
        with self.append_lock:
            with contextlib.suppress(StoreFull):
                self.flush()
            self._close_file()
            self._broken = "this server is leaving"
            if self._folder_lock >= 0:
                os.close(self._folder_lock)
                self._folder_lock = -1


def _take(folder: Path, owner: str) -> int:
    """Lock a folder for a server; return the file handle of the lock."""
    path = folder / "SERVER"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise LogCorrupt(path, "another process has it in use; end that one first") from None
    held = os.read(handle, 4096).decode(errors="replace")
    if not held:
        os.write(handle, owner.encode())
    elif held != owner:
        os.close(handle)
        raise LogCorrupt(path, f"it is the log of {held!r}, not of {owner!r}")
    return handle


def _write(file: int, parts: Sequence[bytes | memoryview]) -> int:
    """Write all parts; return the number of bytes."""
    total = sum([len(part) for part in parts])
    if len(parts) == 1:
        written = os.write(file, parts[0])
        if written == total:
            return total
        parts = [memoryview(parts[0])[written:]]
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.writev(file, left[:_MAX_PARTS])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
    return total


# Shared: it has no state.
_NO_LOCK = contextlib.nullcontext()


def append_lock_of(log: Log | None) -> AbstractContextManager[object]:
    """Return the append lock of a log, or a no-op if there is none."""
    return _NO_LOCK if log is None else log.append_lock
