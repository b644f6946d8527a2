"""The order of an epoch: which block comes when, and which sample in a block."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from gradmesh.trainer.data.batch import Batch

_BLOCKS, _SAMPLES = 0, 1


@final
@dataclass(frozen=True, slots=True)
class BlockOrder:
    """How epochs are shuffled.

    Args:
        seed: Decides on the order; None keeps that of the files.
    """

    seed: int | None = None

    def place(self, epoch: int, number: int, count: int) -> int | None:
        """Return which of `count` comes as number `number`; None behind the last."""
        if number >= count:
            return None
        return number if self.seed is None else int(_permutation(self.seed, epoch, count)[number])


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, count: int) -> Any:
    return np.random.default_rng([seed, _BLOCKS, epoch]).permutation(count)


def shuffled(samples: Batch, order: BlockOrder, epoch: int, block: int) -> Batch:
    """Return the samples of a block in the order of an epoch."""
    if order.seed is None:
        return samples
    chance = np.random.default_rng([order.seed, _SAMPLES, epoch, block])
    places = chance.permutation(samples.size)
    return Batch(samples.dense[places], samples.ids[places], samples.labels[places])
