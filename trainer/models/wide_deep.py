"""Wide & Deep and DeepFM: a weight for each id, a deep network, and pairs of ids.

The first element of a row is the id's weight, the others are its vector: one lookup for both.
"""

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import factorization_machine
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, Linear, Module
from gradmesh.trainer.models.inputs import side_by_side


@final
class WideDeep(Module):
    """Score clicks by a wide part, a deep one, and with `pairs` a factorization machine: DeepFM.

    Args:
        embeddings: Module that turns ids int64 [batch, ids] into [batch, features, 1 + dim].
        dense_features: Numbers that come with each sample.
        features: Categorical features.
        dim: Length of the ids' vectors.
        top: Widths of the deep part's hidden layers.
        pairs: Whether pairs of ids count, too.
        generator: Where initial values come from; the default stream if None.
    """

    def __init__(
        self,
        embeddings: Module,
        *,
        dense_features: int,
        features: int,
        dim: int,
        top: Sequence[int] = (64, 32),
        pairs: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.pairs = pairs
        self.wide = Linear(dense_features, 1, generator=generator) if dense_features else None
        self.deep = MLP((dense_features + features * dim, *top, 1), generator=generator)

    def forward(self, dense: Any, ids: Any) -> Tensor:
        """Return the log-odds of a click, [batch]; arguments as DLRM's."""
        rows = self.embeddings(ids)
        weights, vectors = rows[:, :, 0], rows[:, :, 1:]
        scores: Tensor = weights.sum(dim=1) + self.deep(side_by_side(dense, vectors)).reshape(-1)
        if self.wide is not None:
            scores = scores + self.wide(as_tensor(dense)).reshape(-1)
        if self.pairs:
            scores = scores + factorization_machine(vectors).reshape(-1)
        return scores
