"""A data set of numpy files: dense.npy, ids.npy and labels.npy in a folder, mapped into memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.sdk.checkpoint.npy import map_npy
from gradmesh.trainer.data.blocks import BlockOrder, FileBlocks
from gradmesh.trainer.data.encoder import Encoder
from gradmesh.trainer.data.samples import BadLine, Columns, without_bad
from gradmesh.trainer.errors import DataError

_NAMES = ("dense", "ids", "labels")


@final
class ArrayFolder:
    """One folder of arrays.

    Args:
        path: The folder; dense.npy may be missing.
        begin: Fraction of the samples to begin at.
        end: Fraction to end at.
        labelled: Whether it holds labels; they are not read otherwise.

    Raises:
        DataError: A file is missing, or they hold different numbers of samples.
    """

    def __init__(
        self, path: Path, begin: float = 0.0, end: float = 1.0, labelled: bool = True
    ) -> None:
        self.path = path
        arrays: dict[str, Any] = {}
        for name in _NAMES if labelled else _NAMES[:-1]:
            file = path / f"{name}.npy"
            if name == "dense" and not file.exists():
                continue
            try:
                arrays[name] = map_npy(file)
            except (OSError, ValueError) as error:
                raise DataError(f"{file}: {error}; expected arrays {', '.join(_NAMES)}") from error
            if name == "ids" and arrays[name].dtype.kind not in "iu":
                raise DataError(f"{file}: ids are {arrays[name].dtype}, expected whole numbers")
        if arrays["ids"].ndim != 2:
            raise DataError(f"{path}: ids are {arrays['ids'].shape}, expected [samples, features]")
        if not labelled:
            arrays["labels"] = np.zeros(len(arrays["ids"]), np.float32)
        samples = arrays["labels"].size
        dense = arrays.get("dense")
        self.dense: Any = np.zeros((samples, 0), np.float32) if dense is None else dense
        self.ids, self.labels = arrays["ids"], arrays["labels"].reshape(-1)
        shapes = [array.shape for array in (self.dense, self.ids)]
        if any(len(shape) != 2 or shape[0] != samples for shape in shapes):
            raise DataError(
                f"{path}: dense is {shapes[0]} and ids {shapes[1]}; expected [{samples}, features]"
                f" each, as there are {samples} samples"
            )
        self.begin, self.end = int(samples * begin), int(samples * end)


@final
class ArrayBlocks(FileBlocks):
    """Samples from mapped arrays.

    Args:
        folders: In the order of an epoch that is not shuffled.
        block_samples: Samples of a block.
        encoder: Makes ids of values.
        order: Whether and how epochs are shuffled.
    """

    def __init__(
        self,
        folders: Sequence[ArrayFolder],
        block_samples: int,
        encoder: Encoder,
        order: BlockOrder,
    ) -> None:
        super().__init__(encoder, order)
        self._spans = [
            (folder, begin, min(begin + block_samples, folder.end))
            for folder in folders
            for begin in range(folder.begin, folder.end, block_samples)
        ]

    def read_columns(self, epoch: int, block: int) -> tuple[Columns, list[BadLine]] | None:
        """Return a block before it is encoded; see FileBlocks."""
        place = self._order.place(epoch, block, len(self._spans))
        if place is None:
            return None
        folder, begin, end = self._spans[place]
        columns = Columns(
            np.array(folder.labels[begin:end], np.float32),
            np.array(folder.dense[begin:end], np.float32),
            np.array(folder.ids[begin:end], np.int64),
        )
        return without_bad(columns, str(folder.path), begin + 1)

    def count(self) -> int:
        """Return how many samples there are."""
        return sum(end - begin for _, begin, end in self._spans)
