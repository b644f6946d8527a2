"""Opens the data set that the settings describe."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from gradmesh.sdk.process.config import load, section_as_dict
from gradmesh.trainer.data.blocks import BlockOrder, Blocks, FileBlocks
from gradmesh.trainer.data.click import ClickBlocks, ClickData
from gradmesh.trainer.data.click_spec import ClickSpec, criteo_spec
from gradmesh.trainer.data.config import DataConfig
from gradmesh.trainer.data.encoder import Encoder, Vocabulary, VocabularyBuilder
from gradmesh.trainer.data.npy import ArrayBlocks, ArrayFolder
from gradmesh.trainer.data.parquet import ParquetBlocks, ParquetFile
from gradmesh.trainer.data.reader import BlockReader, LocalReader, ReaderPool
from gradmesh.trainer.data.samples import BadLines, Fields
from gradmesh.trainer.data.stream import BatchStream, Progression
from gradmesh.trainer.data.text import TextBlocks, TextFile
from gradmesh.trainer.data.text_layout import (
    TextLayout,
    criteo_layout,
    movielens_layout,
    unlabelled,
)
from gradmesh.trainer.errors import DataError

Split: TypeAlias = Literal["train", "validation", "test"]

_DEFAULT_ROWS = 100_000
_LEAST_BLOCK_BYTES = 16 << 10
_LEAST_BLOCKS = 64
_SAMPLE_BYTES = 256


@final
class Source:
    """A job's data: three splits, the same on every process.

    Args:
        config: The settings.
        seed: Of generated data, and of the order.

    Raises:
        DataError: Files are missing, or the settings do not fit them.
    """

    def __init__(self, config: DataConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self._samples: int | None = None
        self._clicks = ClickData(_spec(config, seed)) if config.format == "generated" else None
        for paths in (config.train, config.validation, config.test):
            _expand(paths)
        self._layout = None if self._clicks else _layout(config)
        self._encoder = None if self._clicks else _encoder(config, self._layout)

    @property
    def fields(self) -> Fields:
        """Which features a sample has."""
        if self._clicks is not None:
            return self._clicks.fields
        assert self._encoder is not None
        return self._encoder.fields

    @property
    def is_endless(self) -> bool:
        """Whether samples are drawn rather than read."""
        return self._clicks is not None

    def epoch_samples(self) -> int | None:
        """Return how many samples an epoch has; None if it never ends. Counts text once."""
        if self._samples is None and not self.is_endless:
            with self.blocks("train", 1) as blocks:
                self._samples = blocks.count()
        return self._samples

    def stream(self, progressions: Sequence[Progression], batch_size: int) -> BatchStream:
        """Return a rank's batches of the training split.

        Args:
            progressions: The rank's share of the blocks.
            batch_size: Samples of a batch.
        """
        bad_lines = BadLines(self.config.max_bad_lines)
        return BatchStream(self._reader(batch_size), progressions, batch_size, bad_lines)

    def _reader(self, batch_size: int) -> BlockReader:
        if not self.config.readers:
            return LocalReader(self.blocks("train", batch_size))
        order = {
            "data": plain_data_config(self.config),
            "seed": self.seed,
            "split": "train",
            "batch_size": batch_size,
        }
        return ReaderPool(order, self.config.readers, self.config.reader_timeout_s)

    def blocks(self, split: Split, batch_size: int, *, labelled: bool = True) -> Blocks:
        """Return the blocks of a split.

        Args:
            split: Validation falls back to test and test to validation, if one has no files.
            batch_size: Samples of a generated block.
            labelled: Whether the files hold labels.

        Raises:
            DataError: The split has no files, or they cannot be read.
        """
        if self._clicks is not None:
            return ClickBlocks(self._clicks, split, batch_size)
        assert self._encoder is not None
        paths, begin, end = self._files(split)
        order = BlockOrder(self.seed if split == "train" and self.config.shuffle else None)
        return self._open(paths, begin, end, order, labelled)

    def with_files(self, files: Sequence[Path], *, labelled: bool = True) -> Blocks:
        """Return the blocks of other files of the same format, in their order."""
        return self._open(_expand(files), 0.0, 1.0, BlockOrder(), labelled)

    def _open(
        self, paths: Sequence[Path], begin: float, end: float, order: BlockOrder, labelled: bool
    ) -> Blocks:
        config, encoder = self.config, self._encoder
        if encoder is None:
            raise DataError("data.format is generated, which reads no files; name their format")
        if config.format == "npy":
            folders = [ArrayFolder(path, begin, end, labelled) for path in paths]
            samples = self._block_samples(sum(folder.end - folder.begin for folder in folders))
            return ArrayBlocks(folders, samples, encoder, order)
        if config.format == "parquet":
            label = config.label_column if labelled else None
            names = (label, config.dense_columns, config.category_columns)
            files = [ParquetFile(path, *names, begin, end) for path in paths]
            groups = [group for file in files for group in file.groups]
            samples = self._block_samples(sum(group.end - group.begin for group in groups))
            return ParquetBlocks(files, samples, encoder, order)
        assert self._layout is not None
        layout = self._layout if labelled else unlabelled(self._layout)
        size = sum(path.stat().st_size for path in paths if path.exists())
        # Small files in small blocks, so that every rank gets some of them.
        block_bytes = max(_LEAST_BLOCK_BYTES, min(config.block_kib * 1024, size // _LEAST_BLOCKS))
        texts = [
            TextFile(path, block_bytes, header=layout.header, begin=begin, end=end)
            for path in paths
        ]
        return TextBlocks(texts, layout, encoder, order)

    def _block_samples(self, samples: int) -> int:
        """Return how many samples make a block of as many: few if there are few, as of text."""
        most = self.config.block_kib * 1024 // _SAMPLE_BYTES
        return max(_LEAST_BLOCK_BYTES // _SAMPLE_BYTES, min(most, samples // _LEAST_BLOCKS))

    def _files(self, split: Split) -> tuple[list[Path], float, float]:
        config = self.config
        if split == "train":
            held = 0.0 if config.test or config.validation else config.holdout
            return _expand(config.train), 0.0, 1.0 - held
        own, other = config.validation, config.test
        if split == "test":
            own, other = other, own
        if own or other:
            return _expand(own or other), 0.0, 1.0
        if not config.holdout:
            raise DataError(f"there is nothing to evaluate on: set data.{split} or data.holdout")
        return _expand(config.train), 1.0 - config.holdout, 1.0


def build_vocabulary(config: DataConfig) -> Vocabulary:
    """Count the values in the training files; reads them once.

    Args:
        config: Its `vocabulary` and `ids` are ignored; `rows` limit the sizes, if set.
    """
    plain = plain_data_config(config) | {"ids": "hash", "vocabulary": None, "shuffle": False}
    source = Source(data_config_from(plain), 0)
    blocks = source.blocks("train", 1)
    assert isinstance(blocks, FileBlocks)
    builder = VocabularyBuilder(source.fields.features)
    bad_lines = BadLines(config.max_bad_lines)
    number = 0
    with blocks:
        while (found := blocks.read_columns(0, number)) is not None:
            columns, bad = found
            bad_lines.add(bad)
            builder.add(columns.tokens)
            number += 1
    return builder.build(config.min_count, max(config.rows) if config.rows else None)


def plain_data_config(config: DataConfig) -> dict[str, Any]:
    """Return settings as JSON holds them."""
    plain = section_as_dict(config)
    return {key: list(v) if isinstance(v, tuple) else v for key, v in plain.items()}


def data_config_from(plain: dict[str, Any]) -> DataConfig:
    """Return settings from JSON."""
    flags = {f"data.{key}": value for key, value in plain.items()}
    return load([DataConfig], flags=flags)[DataConfig]


def _spec(config: DataConfig, seed: int) -> ClickSpec:
    if config.shape == "criteo":
        return criteo_spec(
            seed=seed,
            scale=config.scale,
            alpha=config.alpha,
            multi_hot=config.multi_hot,
            base_rate=config.base_rate,
        )
    return ClickSpec(
        seed=seed,
        dense_features=config.dense_features,
        rows=config.rows or ClickSpec().rows,
        alpha=config.alpha,
        base_rate=config.base_rate,
    )


def _layout(config: DataConfig) -> TextLayout | None:
    if config.format == "criteo":
        return criteo_layout()
    if config.format == "movielens":
        names = {path.name.removesuffix(".gz") for path in _expand(config.train)}
        return movielens_layout(sorted(names)[0], config.click_from)
    if config.format == "text":
        separator = "\t" if config.separator == "tab" else config.separator
        return TextLayout(config.columns, separator, config.header)
    return None


def _encoder(config: DataConfig, layout: TextLayout | None) -> Encoder:
    if layout is not None:
        dense, features = layout.dense_features, layout.features
    elif config.format == "parquet":
        dense, features = len(config.dense_columns), len(config.category_columns)
    else:
        first = _expand(config.train)[0]
        # Only those to predict may do without.
        folder = ArrayFolder(first, labelled=(first / "labels.npy").exists())
        dense, features = folder.dense.shape[1], folder.ids.shape[1]
    rows = config.rows or (_DEFAULT_ROWS,)
    if len(rows) == 1:
        rows = rows * features
    if len(rows) != features:
        raise DataError(
            f"data.rows has {len(rows)} numbers, but the data {features} categorical features;"
            " give one for each, or one for all"
        )
    vocabulary = None
    if config.ids == "vocabulary":
        assert config.vocabulary is not None
        vocabulary = Vocabulary.load(config.vocabulary)
    return Encoder(dense, rows, ids=config.ids, dense=config.dense, vocabulary=vocabulary)


def _expand(patterns: Sequence[Path]) -> list[Path]:
    """Return the files that patterns mean, in the order of their names."""
    found: list[Path] = []
    for pattern in patterns:
        text = str(pattern)
        try:
            matches = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
            there = bool(matches) and Path(matches[0]).exists()
        except (OSError, ValueError) as error:
            raise DataError(f"{pattern} cannot be looked up: {error}") from error
        if not there:
            raise DataError(f"no file matches {pattern}; check the data settings")
        found += [Path(match) for match in matches]
    for path in found:
        # A pipe or a device could be opened for ever, or never end.
        if not (path.is_file() or path.is_dir()):
            raise DataError(f"{path} is not a file; check the data settings")
    return found
