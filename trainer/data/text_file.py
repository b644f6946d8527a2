"""Text files as blocks of whole lines, plain or gzip, bigger than memory.

A plain file is cut at fixed places, and a line belongs to the block that it begins in: any block
can be read without those before it, and shuffling means another order of the blocks and of the
samples in each. A gzip file has no such places; its blocks come in their order.
"""

import gzip
from pathlib import Path
from typing import Any, NamedTuple, final

from gradmesh.trainer.errors import DataError


class Lines(NamedTuple):
    """Whole lines of a file."""

    text: bytes
    line: int | None
    """Number of the first line, from 1; None where it is not known without counting."""
    offset: int
    """Where the first line begins in the file, without compression."""


@final
class TextFile:
    """One file.

    Args:
        path: Ends in .gz if compressed.
        block_bytes: About how long a block is.
        header: Whether the first line is none.
        begin: Which share of the file to begin at; plain files only.
        end: Which share of the file to end at.

    Raises:
        DataError: It cannot be read, or is compressed and shall be divided.
    """

    def __init__(
        self,
        path: Path,
        block_bytes: int,
        *,
        header: bool = False,
        begin: float = 0.0,
        end: float = 1.0,
    ) -> None:
        self.path = path
        self.is_compressed = path.suffix == ".gz"
        self._block_bytes = block_bytes
        self._header = header
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; check the data settings") from error
        if self.is_compressed and (begin, end) != (0.0, 1.0):
            raise DataError(
                f"{path} is compressed, so no share of it can be held out; name files for each"
                " split"
            )
        self._begin, self._end = int(size * begin), int(size * end)
        self._blocks = -(-(self._end - self._begin) // block_bytes)
        self._known_blocks: int | None = None if self.is_compressed else self._blocks
        self._open: Any = None
        self._next = (0, 1, 0)  # of a compressed file: block, line and place
        self._lines_before: dict[int, int] = {0: 0}

    @property
    def blocks(self) -> int | None:
        """How many blocks there are; None until a compressed file was read to its end."""
        return self._known_blocks

    def read(self, block: int) -> Lines | None:
        """Return the lines of a block, or None behind the last one.

        Raises:
            DataError: The file cannot be read, or its compression is damaged.
        """
        if self._known_blocks is not None and block >= self._known_blocks:
            return None
        try:
            return self._read_packed(block) if self.is_compressed else self._read_plain(block)
        except (OSError, EOFError) as error:
            raise DataError(f"{self.path}: {error}; is it complete?") from error

    def line_at(self, offset: int) -> int:
        """Return the number of the line that begins at a place of a plain file, from 1."""
        known = max(place for place in self._lines_before if place <= offset)
        count = self._lines_before[known]
        with self.path.open("rb") as file:
            file.seek(known)
            left = offset - known
            while left:
                piece = file.read(min(left, 1 << 22))
                count += piece.count(b"\n")
                left -= len(piece)
        self._lines_before[offset] = count
        return count + 1

    def _read_plain(self, block: int) -> Lines:
        begin = self._begin + block * self._block_bytes
        end = min(begin + self._block_bytes, self._end)
        with self.path.open("rb") as file:
            if begin:
                # One byte earlier, so that a line that begins right here is found to do so.
                file.seek(begin - 1)
                begin += len(file.readline()) - 1
            elif self._header:
                begin = len(file.readline())
            if begin >= end:
                return Lines(b"", None, begin)
            text = file.read(end - begin)
            if not text.endswith(b"\n"):
                text += file.readline()
        return Lines(text, 1 + int(self._header) if not begin else None, begin)

    def _read_packed(self, block: int) -> Lines | None:
        if self._open is None or block < self._next[0]:
            self.close()
            self._open = gzip.open(self.path, "rb")  # noqa: SIM115 - closed by close()
            self._next = (0, 1, 0)
            if self._header:
                first = self._open.readline()
                self._next = (0, 2, len(first))
        while True:
            number, line, offset = self._next
            text = self._open.read(self._block_bytes)
            if text and not text.endswith(b"\n"):
                text += self._open.readline()
            if not text:
                self._known_blocks = number
                return None
            self._next = (number + 1, line + text.count(b"\n"), offset + len(text))
            if number == block:
                return Lines(text, line, offset)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._open is not None:
            self._open.close()
            self._open = None
