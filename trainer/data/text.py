"""Text files as blocks of whole lines, plain or gzip, larger than memory.

A plain file is cut at fixed offsets, and a line belongs to the block that it begins in. So any
block can be read without those before it, and shuffling permutes the blocks and the samples of
each. A gzip file has no such offsets; its blocks come in order.
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from gradmesh.trainer.data.blocks import BlockOrder, FileBlocks
from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.samples import BadLine, Columns
from gradmesh.trainer.data.text_layout import TextLayout
from gradmesh.trainer.errors import DataError

_MAX_LINE_BYTES = 4 << 20


class Lines(NamedTuple):
    """Whole lines of a file."""

    text: bytes
    line: int | None
    """Number of the first line, from 1; None if it is unknown without counting."""
    offset: int
    """Where the first line begins in the file, without compression."""


@final
class TextFile:
    """One file.

    Args:
        path: Ends in .gz if compressed.
        block_bytes: About how long a block is.
        header: Whether the first line is a header.
        begin: Fraction of the file to begin at; plain files only.
        end: Fraction of the file to end at.

    Raises:
        DataError: It cannot be read, or is compressed and must be divided.
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
        self._next = (0, 1, 0)  # of a compressed file: block, line and offset
        self._lines_before: dict[int, int] = {0: 0}

    @property
    def blocks(self) -> int | None:
        """How many blocks there are; None until a compressed file was read to its end."""
        return self._known_blocks

    def read(self, block: int) -> Lines | None:
        """Return the lines of a block, or None past the last one.

        Raises:
            DataError: The file cannot be read, or its compression is damaged.
        """
        if self._known_blocks is not None and block >= self._known_blocks:
            return None
        try:
            return self._read_packed(block) if self.is_compressed else self._read_plain(block)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DataError(f"{self.path}: {error}; is it complete?") from error

    def line_at(self, offset: int) -> int:
        """Return the number of the line that begins at an offset of a plain file, from 1."""
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
                begin += len(_line_of(file)) - 1
            elif self._header:
                begin = len(_line_of(file))
            if begin >= end:
                return Lines(b"", None, begin)
            text = file.read(end - begin)
            if not text.endswith(b"\n"):
                text += _line_of(file)
        return Lines(text, 1 + int(self._header) if not begin else None, begin)

    def _read_packed(self, block: int) -> Lines | None:
        if self._open is None or block < self._next[0]:
            self.close()
            self._open = gzip.open(self.path, "rb")  # noqa: SIM115 - closed by close()
            self._next = (0, 1, 0)
            if self._header:
                first = _line_of(self._open)
                self._next = (0, 2, len(first))
        while True:
            number, line, offset = self._next
            text = self._open.read(self._block_bytes)
            if text and not text.endswith(b"\n"):
                text += _line_of(self._open)
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


@final
class TextBlocks(FileBlocks):
    """Samples from lines.

    Args:
        files: In the order of an epoch that is not shuffled.
        layout: Of their lines.
        encoder: Makes ids of values.
        order: Whether and how epochs are shuffled.
    """

    def __init__(
        self,
        files: Sequence[TextFile],
        layout: TextLayout,
        encoder: Encoder,
        order: BlockOrder,
    ) -> None:
        super().__init__(encoder, order)
        self._files = list(files)
        self._layout = layout

    def read_columns(self, epoch: int, block: int) -> tuple[Columns, list[BadLine]] | None:
        """Return a block before it is encoded; see FileBlocks."""
        found = self._lines(epoch, block)
        if found is None:
            return None
        file, lines = found
        columns, problems = self._layout.parse(lines.text)
        return columns, [
            BadLine(str(file.path), _line(file, lines, place), reason) for place, reason in problems
        ]

    def count(self) -> int:
        """Count the lines; reads all files once."""
        total = 0
        for file in self._files:
            block = 0
            while (lines := file.read(block)) is not None:
                total += lines.text.count(b"\n")
                total += int(bool(lines.text) and not lines.text.endswith(b"\n"))
                block += 1
        return total

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def _lines(self, epoch: int, block: int) -> tuple[TextFile, Lines] | None:
        if not any(file.is_compressed for file in self._files):
            # Every block can be read by itself, so blocks are shuffled over all files.
            counts = [file.blocks or 0 for file in self._files]
            place = self._order.place(epoch, block, sum(counts))
            if place is None:
                return None
            for file, count in zip(self._files, counts, strict=True):
                if place < count:
                    lines = file.read(place)
                    return None if lines is None else (file, lines)
                place -= count
            return None
        left = block
        for number in range(len(self._files)):
            place = self._order.place(epoch, number, len(self._files))
            assert place is not None
            file = self._files[place]
            lines = file.read(left)
            if lines is not None:
                return file, lines
            assert file.blocks is not None
            left -= file.blocks
        return None


def _line_of(file: Any) -> bytes:
    """Return the rest of a line.

    Raises:
        ValueError: It is longer than any sample: a small compressed file may hold a huge line.
    """
    found: bytes = file.readline(_MAX_LINE_BYTES + 1)
    if len(found) > _MAX_LINE_BYTES:
        raise ValueError(f"a line has more than {_MAX_LINE_BYTES:,} bytes")
    return found


def _line(file: TextFile, lines: Lines, place: int) -> int:
    """Return the number of the line that begins at an offset of some lines."""
    if lines.line is not None:
        return lines.line + lines.text[:place].count(b"\n")
    return file.line_at(lines.offset + place)
