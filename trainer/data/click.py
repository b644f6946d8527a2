"""Generated click data with random access: any rank draws its own batch at once.

Batch `index` of a split is a pure function of (spec, split, index, size): its random
numbers come from a counter-based generator set to that place, nothing before it is read.
"""

from typing import Final, Literal, TypeAlias, final

import numpy as np

from gradmesh.trainer.data.batch import Batch
from gradmesh.trainer.data.power_law import PowerLaw
from gradmesh.trainer.data.spec import ClickSpec
from gradmesh.trainer.data.teacher import Teacher, sigmoid

Split: TypeAlias = Literal["train", "validation", "test"]

_STREAMS: Final[dict[Split, int]] = {"train": 0, "validation": 1, "test": 2}


@final
class ClickData:
    """Samples with power-law ids and labels drawn from a hidden teacher.

    Args:
        spec: What the data look like.
    """

    def __init__(self, spec: ClickSpec) -> None:
        self.spec = spec
        self.fields = spec.fields
        hots = spec.hots or (1,) * len(spec.rows)
        columns = [(rows, feature) for feature, rows in enumerate(spec.rows)]
        repeated = [pair for pair, count in zip(columns, hots, strict=True) for _ in range(count)]
        self._law = PowerLaw(
            [rows for rows, _ in repeated], spec.alpha, features=[f for _, f in repeated]
        )
        self._teacher = Teacher(spec, self._law)

    def __repr__(self) -> str:
        return f"ClickData({self.spec})"

    def batch(self, split: Split, index: int, size: int) -> Batch:
        """Draw batch `index` of a split.

        Args:
            split: Splits share the teacher and no sample.
            index: Which batch, from 0; ranks usually take `step * world_size + rank`.
            size: Samples in the batch. Another size gives other samples.

        Raises:
            ValueError: The split is unknown, or index or size is negative.
        """
        if split not in _STREAMS:
            raise ValueError(f"unknown split {split!r}; use one of {', '.join(_STREAMS)}")
        if index < 0 or size < 0:
            raise ValueError(f"index and size must not be negative, got {index} and {size}")
        rng = np.random.Generator(
            np.random.Philox(key=[self.spec.seed, _STREAMS[split]], counter=[0, 0, size, index])
        )
        dense = rng.standard_normal((size, self.spec.dense_features), dtype=np.float32)
        ids = self._law.ids(rng.random((size, self.fields.columns[-1])))
        best = sigmoid(self._teacher.logits(dense, ids))
        labels = (rng.random(size, dtype=np.float32) < best).astype(np.float32)
        if self.spec.dense_law == "log-normal":
            np.exp(dense, out=dense)
        return Batch(dense, ids, labels, best)
