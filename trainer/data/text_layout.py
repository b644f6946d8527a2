"""The columns of a text file, and parsing its lines by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.data import text_kernel
from gradmesh.trainer.data.samples import Columns
from gradmesh.trainer.errors import DataError

CRITEO_DENSE = 13
CRITEO_CATEGORICAL = 26

_ROLES = {
    "skip": text_kernel.SKIP,
    "label": text_kernel.LABEL,
    "dense": text_kernel.DENSE,
    "hex": text_kernel.HEXADECIMAL,
    "category": text_kernel.TOKEN,
}
COLUMN_KINDS = tuple(_ROLES)

_REASONS = {
    text_kernel.FEW_COLUMNS: "the line ends after column {column}; {count} are expected",
    text_kernel.MANY_COLUMNS: "there is a column {column}; {count} are expected",
    text_kernel.NO_NUMBER: "column {column} is not a number",
    text_kernel.NO_LABEL: "column {column}, the label, is neither 0 nor 1",
    text_kernel.EMPTY: "the line is empty",
    text_kernel.NO_HEXADECIMAL: "column {column} is not a hexadecimal number",
}


@final
@dataclass(frozen=True, slots=True)
class TextLayout:
    """The columns of a line.

    Args:
        columns: "label", "dense", "category", "hex" (a category as a hexadecimal number) or
            "skip" for each.
        separator: One character.
        header: Whether the first line names the columns.
        click_from: Labels from this number on are clicks; None expects 0 and 1.

    Raises:
        DataError: A column or the separator is not valid.
    """

    columns: tuple[str, ...]
    separator: str = "\t"
    header: bool = False
    click_from: float | None = None

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in _ROLES:
                raise DataError(f"no column is called {name!r}; use {', '.join(_ROLES)}")
        if self.columns.count("label") > 1:
            raise DataError("data.columns has more than one label")
        if len(self.separator.encode()) != 1 or self.separator in "\n\r":
            raise DataError(f"the separator must be one plain character, not {self.separator!r}")

    @property
    def dense_features(self) -> int:
        """Number of dense values of a sample."""
        return self.columns.count("dense")

    @property
    def features(self) -> int:
        """Number of categorical features of a sample."""
        return self.columns.count("category") + self.columns.count("hex")

    def parse(self, text: bytes) -> tuple[Columns, list[tuple[int, str]]]:
        """Parse whole lines.

        Returns:
            The samples, and the offset and reason of each bad line.
        """
        buffer = np.frombuffer(text, np.uint8)
        most = int(np.count_nonzero(buffer == ord("\n"))) + 1
        labels = np.zeros(most, np.float32)
        dense = np.empty((most, self.dense_features), np.float32)
        tokens = np.empty((most, self.features), np.int64)
        starts, problems = np.empty(most, np.int64), np.empty(most, np.int64)
        count = text_kernel.parse_lines(
            buffer,
            ord(self.separator),
            np.array([_ROLES[name] for name in self.columns], np.int8),
            np.nan if self.click_from is None else self.click_from,
            labels,
            dense,
            tokens,
            starts,
            problems,
        )
        fine = problems[:count] == 0
        bad = [
            (int(starts[place]), self._reason(int(problems[place])))
            for place in np.flatnonzero(~fine)
        ]
        if bad:
            return Columns(labels[:count][fine], dense[:count][fine], tokens[:count][fine]), bad
        return Columns(labels[:count], dense[:count], tokens[:count]), bad

    def _reason(self, problem: int) -> str:
        text = _REASONS[problem % 16]
        return text.format(column=problem // 16, count=len(self.columns))


def criteo_layout(labelled: bool = True) -> TextLayout:
    """Return the layout of Criteo's files, those of Kaggle and those of the terabyte alike."""
    features = ("dense",) * CRITEO_DENSE + ("hex",) * CRITEO_CATEGORICAL
    return TextLayout((("label",) if labelled else ()) + features)


def movielens_layout(file_name: str, click_from: float) -> TextLayout:
    """Return the layout of MovieLens' ratings: user, movie, rating, time.

    Args:
        file_name: ratings.csv has a header and commas, ratings.dat double colons, u.data tabs.
        click_from: Ratings from this one on count as clicks.
    """
    plain = ("category", "category", "label", "skip")
    if file_name.endswith(".dat"):
        apart = [kind for column in plain for kind in (column, "skip")][:-1]
        return TextLayout(tuple(apart), ":", False, click_from)
    if file_name.endswith(".data"):
        return TextLayout(plain, "\t", False, click_from)
    return TextLayout(plain, ",", True, click_from)


def hash_texts(texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the tokens of a "category" column for some texts."""
    if not texts:
        return np.empty(0, np.int64)
    joined = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    out = np.empty(len(texts), np.int64)
    text_kernel.hash_fields(joined, ends, out)
    return out


def unlabelled(layout: TextLayout) -> TextLayout:
    """Return a layout without its label, for files to predict."""
    columns: Sequence[str] = [name for name in layout.columns if name != "label"]
    return TextLayout(tuple(columns), layout.separator, layout.header, None)
