"""Generated click data with random access: any rank draws its own batch at once.

Batch `index` of a split is a pure function of (spec, split, index, size): its random
numbers come from a counter-based generator set to that position; nothing before it is drawn.

The hidden teacher gives the true probability of a click, from which labels are drawn. It is a
factorisation machine over all features: each id has an effect and a latent vector, the dense
features have a linear effect and project to one more latent vector, and all pairs of latent vectors
interact by their dot product. A model of single features alone falls short, and the best possible
AUC is known.
"""

from typing import Final, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.click_spec import ClickSpec, PowerLaw
from gradmesh.trainer.data.samples import Batch, Block

_CALIBRATION_SAMPLES = 65536


@final
class Teacher:
    """Gives the true log-odds for one spec; equal specs give equal teachers on every process.

    Args:
        spec: What the data look like.
        law: Distribution of the features' ids, by which effects are weighted.
    """

    def __init__(self, spec: ClickSpec, law: PowerLaw) -> None:
        rng = np.random.Generator(np.random.Philox(key=[spec.seed, _TEACHER_STREAM]))
        # Columns: the effect, the square of the latent vector, the latent vector.
        width = 2 + spec.latent_dim
        rows = [min(count, spec.teacher_rows or count) for count in spec.rows]
        hots = spec.hots or (1,) * len(rows)
        self._rows = np.repeat(np.array(rows, np.int64), hots)
        self._folded = rows != list(spec.rows)
        self._offsets = np.repeat(np.cumsum([0, *rows[:-1]], dtype=np.int64), hots)
        # Where a feature has several ids, its effect and its vector are their mean.
        self._starts = np.cumsum([0, *hots[:-1]]) if max(hots) > 1 else None
        self._hots = np.array(hots, np.float32)[:, None]
        self._tables = rng.standard_normal((sum(rows), width), dtype=np.float32)
        self._dense = rng.standard_normal((spec.dense_features, width), dtype=np.float32)
        self._bias = np.float32(0)
        self._square_latents()
        self._scale(spec, rng, law)

    def logits(
        self, dense: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Return the true log-odds of a click, float32 [batch]."""
        effect, pairs, linear = self._parts(dense, ids)
        effect += pairs
        effect += linear
        effect += self._bias
        return effect

    def _parts(
        self, dense: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the share of single ids, of pairs, and of dense features."""
        places = (ids % self._rows if self._folded else ids) + self._offsets
        rows = np.take(self._tables, places, axis=0, mode="clip")
        if self._starts is not None:
            rows = np.add.reduceat(rows, self._starts, axis=1)
            rows /= self._hots
            rows[:, :, 1] = np.einsum("bfd,bfd->bf", rows[:, :, 2:], rows[:, :, 2:])
        # einsum sums short middle axes four times as fast as add.reduce.
        total = np.einsum("bfd->bd", rows)
        projected = dense @ self._dense
        # All pairs at once: the square of the sum less the squares of its terms, halved.
        squares = total[:, 1] + _square(projected[:, 2:])
        pairs = 0.5 * (_square(total[:, 2:] + projected[:, 2:]) - squares)
        return total[:, 0], pairs, projected[:, 0]

    def _scale(self, spec: ClickSpec, rng: np.random.Generator, law: PowerLaw) -> None:
        """Give each part its share of the spread, and the whole its base rate."""
        # A sample with many ids costs more and carries more information.
        count = _CALIBRATION_SAMPLES if self._starts is None else _CALIBRATION_SAMPLES // 8
        dense = rng.standard_normal((count, spec.dense_features), dtype=np.float32)
        ids = law.ids(rng.random((count, self._rows.size)))
        effect, pairs, linear = (float(part.std()) for part in self._parts(dense, ids))
        wanted = [spec.spread * float(np.sqrt(share)) for share in spec.shares]
        self._tables[:, 0] *= _factor(wanted[0], effect)
        self._dense[:, 0] *= _factor(wanted[2], linear)
        latent = np.sqrt(_factor(wanted[1], pairs))
        self._tables[:, 2:] *= latent
        self._dense[:, 2:] *= latent
        self._square_latents()
        self._bias = np.float32(_bias_for(spec.base_rate, self.logits(dense, ids)))

    def _square_latents(self) -> None:
        self._tables[:, 1] = _square(self._tables[:, 2:])


_TEACHER_STREAM = 2**32


def sigmoid(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return 1 / (1 + exp(-logits)); large negative logits give 0."""
    with np.errstate(over="ignore"):
        return np.reciprocal(np.float32(1) + np.exp(-logits))


def _factor(wanted: float, spread: float) -> float:
    # Tables of one row have no spread, and rounding noise must not be amplified into one.
    return wanted / spread if spread > 1e-4 else 1.0


def _square(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(np.einsum("bd,bd->b", vectors, vectors))


def _bias_for(rate: float, logits: npt.NDArray[np.float32]) -> float:
    """Find by bisection the bias that gives the logits a mean probability of `rate`."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        if float(sigmoid(logits + np.float32(middle)).mean()) < rate:
            low = middle
        else:
            high = middle
    return middle


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
            split: Splits share the teacher but no sample.
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


@final
class ClickBlocks(Blocks):
    """Generated clicks as an endless data set: block n is batch n.

    Args:
        data: Draws the samples.
        split: Which split.
        block_samples: Samples of a block.
        blocks: Blocks of an epoch; None never ends.
    """

    def __init__(
        self, data: ClickData, split: Split, block_samples: int, blocks: int | None = None
    ) -> None:
        self.fields = data.fields
        self._data = data
        self._split: Split = split
        self._block_samples = block_samples
        self._blocks = blocks

    def read(self, epoch: int, block: int) -> Block | None:
        """Return a block; every epoch has the same samples."""
        if self._blocks is not None and block >= self._blocks:
            return None
        batch = self._data.batch(self._split, block, self._block_samples)
        if self._data.spec.dense_law == "log-normal":
            # As an encoder does: these numbers are counts, and counts are skewed.
            batch = batch._replace(dense=np.log1p(batch.dense))
        return Block(batch)

    def count(self) -> int | None:
        """Return how many samples an epoch has; None if it never ends."""
        return None if self._blocks is None else self._blocks * self._block_samples
