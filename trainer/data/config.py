"""Settings of the data."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from gradmesh.sdk.process.setting import Problem, Section, setting
from gradmesh.trainer.data.click_spec import ClickSpec
from gradmesh.trainer.data.encoder import DenseRule, IdRule
from gradmesh.trainer.data.text_layout import COLUMN_KINDS

_CLICKS = ClickSpec()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(Section):
    """The [data] table."""

    section: ClassVar[str] = "data"
    flag_prefix: ClassVar[str] = "data-"

    format: Literal["generated", "criteo", "movielens", "text", "parquet", "npy"] = setting(
        "generated", "Format of the samples."
    )
    train: tuple[Path, ...] = setting(
        (), "Files to train on, or folders for npy; * and ? are wildcards."
    )
    validation: tuple[Path, ...] = setting((), "Files to evaluate on while training.")
    test: tuple[Path, ...] = setting((), "Files on which the result is measured.")
    holdout: float = setting(
        0.0,
        "Last fraction of each training file, held out for validation and test if they have no"
        " files.",
        minimum=0,
        maximum=0.9,
    )
    rows: tuple[int, ...] = setting(
        (),
        "Rows of the table of each categorical feature, or one number for all; empty means the"
        " format's own.",
        minimum=1,
    )
    dense_features: int = setting(
        _CLICKS.dense_features, "Numbers of a generated sample.", minimum=1
    )
    shape: Literal["small", "criteo"] = setting(
        "small", "Shape of generated data: a few small tables, or Criteo's 13 + 26 features."
    )
    scale: float = setting(
        1.0, "Factor on the cardinalities of shape criteo.", minimum=1e-6, maximum=1000
    )
    alpha: float = setting(
        _CLICKS.alpha, "Exponent of generated ids' power law; 0 is uniform.", minimum=0, maximum=10
    )
    base_rate: float = setting(
        _CLICKS.base_rate,
        "Fraction of generated samples with a click: a quarter in Kaggle's data, 0.03 in the"
        " terabyte's.",
        minimum=0.001,
        maximum=0.999,
    )
    multi_hot: bool = setting(
        False, "Whether features of shape criteo have several ids a sample, as in MLPerf."
    )
    columns: tuple[str, ...] = setting(
        (), "What each column of a text file holds: label, dense, category, hex or skip."
    )
    separator: str = setting("tab", "Separator of the columns of a text file: tab, or a character.")
    header: bool = setting(False, "Whether the first line of a text file names its columns.")
    click_from: float = setting(4.0, "Lowest rating of MovieLens that counts as liked.")
    label_column: str = setting("label", "Column of a Parquet file with the label.")
    dense_columns: tuple[str, ...] = setting(
        tuple(f"I{i}" for i in range(1, 14)), "Columns of a Parquet file with numbers."
    )
    category_columns: tuple[str, ...] = setting(
        tuple(f"C{i}" for i in range(1, 27)), "Columns of a Parquet file with categories."
    )
    ids: IdRule = setting("hash", "How values become ids.")
    vocabulary: Path | None = setting(
        None, "File of the vocabulary; `gradmesh train` creates it if it is missing."
    )
    min_count: int = setting(10, "How often a value must occur to be in the vocabulary.", minimum=1)
    dense: DenseRule = setting("log", "Transformation of the numbers: log(1 + x), or none.")
    shuffle: bool = setting(True, "Whether training samples come in another order each epoch.")
    block_kib: int = setting(
        4096, "About how much of a file is read and shuffled at a time.", minimum=1
    )
    readers: int = setting(
        0,
        "Processes of each trainer that read ahead; 0 reads in the trainer.",
        minimum=0,
        maximum=64,
    )
    reader_timeout_s: float = setting(
        120.0, "Seconds that reading one block may take.", minimum=0.1, maximum=86400
    )
    max_bad_lines: int = setting(
        100, "Invalid lines that are skipped before a trainer gives up.", minimum=0
    )

    def problems(self) -> Iterable[Problem]:
        """Yield contradictions between the fields."""
        if self.format != "generated" and not self.train:
            yield Problem("train", f"must name files of format {self.format}")
        if self.format == "generated" and (self.train or self.validation or self.test):
            yield Problem("format", "is generated, which reads no files; name their format")
        if self.format == "text" and not self.columns:
            kinds = ", ".join(COLUMN_KINDS)
            yield Problem("columns", f"must say what each column holds: {kinds}")
        for kind in self.columns:
            if kind not in COLUMN_KINDS:
                yield Problem("columns", f"expected {', '.join(COLUMN_KINDS)}, got {kind!r}")
        if self.ids == "vocabulary" and self.vocabulary is None:
            yield Problem("vocabulary", "must name a file when ids is vocabulary")
        if self.multi_hot and not (self.format == "generated" and self.shape == "criteo"):
            yield Problem("multi_hot", "is for generated data of shape criteo")
        if self.rows and self.format == "generated" and self.shape == "criteo":
            yield Problem("rows", "follow from scale where shape is criteo; leave one of them out")
