"""A data set of text files."""

from collections.abc import Sequence
from typing import final

from gradmesh.trainer.data.columns import BadLine, Columns
from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.file_blocks import FileBlocks
from gradmesh.trainer.data.order import BlockOrder
from gradmesh.trainer.data.text_file import Lines, TextFile
from gradmesh.trainer.data.text_layout import TextLayout


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
            # Every block can be reached by itself, so they are shuffled over all files.
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


def _line(file: TextFile, lines: Lines, place: int) -> int:
    """Return the number of a line that begins at a place of some lines."""
    if lines.line is not None:
        return lines.line + lines.text[:place].count(b"\n")
    return file.line_at(lines.offset + place)
